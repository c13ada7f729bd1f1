"""Whether a decision may be followed: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason, PlanRequest, StepDecision

__all__ = ["PublishedStep", "judge_decision"]

_MODEL_STATES = (1, 2)  # specsched.v1.ModelState without UNSPECIFIED


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """What was asked for one step, as far as its decision can be held against it."""

    source_step_id: int
    max_budget: int

    @classmethod
    def of(cls, request: PlanRequest) -> PublishedStep:
        """max_budget: the executor's cap or the drafts expected, whichever is less."""
        num_drafts = int(request.num_draft_tokens[request.samples].sum(dtype="int64"))
        return cls(request.source_step_id, min(request.max_budget, num_drafts))


def judge_decision(
    decision: StepDecision, published: PublishedStep, epoch: int, max_draft_tokens: int
) -> FallbackReason | None:
    """Why `decision` must not be followed, or None.

    WRONG_EPOCH: made for another opening of the lane. STALE_SOURCE: from other confidences than the
    request named, which were chosen to be older than the drafts it verifies. IMPOSSIBLE: a budget
    above what was asked for, a length above k, an expectation that is no number.
    """
    if decision.epoch != epoch:
        return FallbackReason.WRONG_EPOCH
    if decision.source_step_id != published.source_step_id:
        return FallbackReason.STALE_SOURCE
    has_cap = decision.max_verify_len != NO_BUDGET_CAP
    is_possible = (
        0 <= decision.budget <= published.max_budget
        and (not has_cap or 0 <= decision.max_verify_len <= max_draft_tokens)
        and 0 <= decision.next_draft_tokens <= max_draft_tokens
        and decision.model_state in _MODEL_STATES
        and 0.0 <= decision.expected_tokens < math.inf
        and 0.0 <= decision.expected_ms < math.inf
        and 0.0 <= decision.fairness < math.inf
    )
    return None if is_possible else FallbackReason.IMPOSSIBLE
