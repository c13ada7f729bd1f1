"""What a step does without a scheduler's decision."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from specsched_protocol.plan import (
    FILL_SIZE_FLAG,
    NO_BUDGET_CAP,
    FallbackReason,
    StepDecision,
)

__all__ = ["Allowance", "FallbackKind", "FallbackPolicy", "FallbackState"]


class FallbackKind(enum.StrEnum):
    """Rules for a step without a decision."""

    HOLD = "hold"
    FIXED = "fixed"
    OFF = "off"
    EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class FallbackPolicy:
    """`hold`: the last decision's share of the drafts; `fixed`: up to k each; `off`: none;
    `embedded`: what the decision code in this process says, `hold` where it has nothing to say.
    """

    kind: FallbackKind = FallbackKind.HOLD
    max_verify_len: int = 0

    @classmethod
    def parse(cls, text: str) -> FallbackPolicy:
        """Read "hold", "off", "embedded" or "fixed(K)". Raises ValueError for anything else."""
        match = re.fullmatch(r"(hold|off|embedded)|fixed\((\d+)\)", text.strip())
        if match is None:
            raise ValueError(
                f"fallback is {text!r}; accepted: hold, off, embedded or fixed(K), K 0 or more"
            )
        if match[1]:
            return cls(FallbackKind(match[1]))
        return cls(FallbackKind.FIXED, int(match[2]))


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may verify, and how long the drafts made at its end are.

    fairness: alpha of specsched_protocol.fairness. fills_size: whether the budget is fitted to the
    captured size that runs the step. planned_other_tokens: rows that are no drafts, as many as the
    decision counted on; None where it is not known. `fallback` is None where a decision said so.
    """

    budget: int
    max_verify_len: int
    next_draft_tokens: int
    fallback: FallbackReason | None = None
    fairness: float = 0.0
    fills_size: bool = False
    planned_other_tokens: int | None = None


class FallbackState:
    """Remembers what `hold` needs.

    The budget of a fallback is a share of the drafts the plan request EXPECTED, never of those that
    turned up: how many turned up may depend on the very tokens it admits (lossless invariant).
    """

    def __init__(self, policy: FallbackPolicy, max_draft_tokens: int) -> None:
        self._policy = policy
        self._max_draft_tokens = max_draft_tokens
        self._share = 1.0
        self._max_verify_len = NO_BUDGET_CAP
        self._next_draft_tokens = max_draft_tokens
        self._fairness = 0.0

    def decided(
        self,
        decision: StepDecision,
        num_expected_drafts: int,
        planned_other_tokens: int | None = None,
    ) -> Allowance:
        """Carry out a decision, and remember it as a share of the drafts expected then."""
        next_draft_tokens = min(decision.next_draft_tokens, self._max_draft_tokens)
        if num_expected_drafts > 0:
            self._share = min(1.0, decision.budget / num_expected_drafts)
        self._max_verify_len = decision.max_verify_len
        self._next_draft_tokens = next_draft_tokens
        self._fairness = decision.fairness
        return Allowance(
            decision.budget,
            decision.max_verify_len,
            next_draft_tokens,
            fairness=decision.fairness,
            fills_size=bool(decision.flags & FILL_SIZE_FLAG),
            planned_other_tokens=planned_other_tokens,
        )

    @property
    def wants_stand_in(self) -> bool:
        """Whether `fallen_back` asks for this process's own decision."""
        return self._policy.kind is FallbackKind.EMBEDDED

    def fallen_back(
        self,
        reason: FallbackReason,
        num_expected_drafts: int,
        stand_in: StepDecision | None = None,
    ) -> Allowance:
        """Do without a scheduler's decision. stand_in: this process's own, if it has one."""
        if stand_in is not None:
            length = min(stand_in.next_draft_tokens, self._max_draft_tokens)
            return Allowance(
                stand_in.budget,
                stand_in.max_verify_len,
                length,
                reason,
                stand_in.fairness,
                fills_size=bool(stand_in.flags & FILL_SIZE_FLAG),
            )
        alone = reason is FallbackReason.NO_SCHEDULER
        if self._policy.kind is FallbackKind.OFF:
            return Allowance(0, 0, 0 if alone else self._next_draft_tokens, reason)
        if self._policy.kind is FallbackKind.FIXED:
            cap = self._policy.max_verify_len
            return Allowance(NO_BUDGET_CAP, cap, min(cap, self._max_draft_tokens), reason)
        # Nobody is left to ask for a draft again after a 0.
        length = self._max_draft_tokens if alone else self._next_draft_tokens
        budget = NO_BUDGET_CAP
        if self._share < 1.0:
            budget = math.ceil(self._share * num_expected_drafts)
        return Allowance(budget, self._max_verify_len, length, reason, self._fairness)
