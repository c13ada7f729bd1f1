"""What another policy would have decided, and brought, on recorded steps.

Counterfactual tokens are those of specsched_protocol.hindsight: outcomes that are known count as
they were, drafts behind a wholly accepted prefix with their confidence. Time is what was measured,
corrected by the profile's difference between the two numbers of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from specsched_protocol.hindsight import Hindsight
from specsched_protocol.plan import NO_BUDGET_CAP

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.reference import verify_ms
from specsched_scheduler.decision.wire import cost_model_from_message
from specsched_scheduler.decision.workspace import new_running_mean
from specsched_scheduler.policies import BuiltPolicy

from .reader import RecordedStep, TraceFile

__all__ = ["ReplayTotals", "ReplayedStep", "replay"]

_MS_PER_SECOND = 1e3


@dataclass(frozen=True, slots=True)
class Side:
    """One of two decisions for a step. Of a step without an outcome only budget and expectation."""

    budget: int
    expected_tokens: float
    tokens: float = 0.0
    ms: float = 0.0
    regret: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step, as recorded and as the new policy decides it."""

    step_id: int
    recorded: Side
    new: Side
    has_outcome: bool


@dataclass(slots=True)
class ReplayTotals:
    """Sums over steps; rates and means are of those with an outcome."""

    num_steps: int = 0
    num_outcomes: int = 0
    num_same: int = 0
    sums: dict[str, list[float]] = field(
        default_factory=lambda: {"recorded": [0.0] * 5, "new": [0.0] * 5}
    )

    def add(self, step: ReplayedStep) -> None:
        """One more."""
        self.num_steps += 1
        self.num_outcomes += step.has_outcome
        self.num_same += step.recorded.budget == step.new.budget
        for name, side in (("recorded", step.recorded), ("new", step.new)):
            values = (side.budget, side.expected_tokens, side.tokens, side.ms, side.regret)
            self.sums[name] = [a + b for a, b in zip(self.sums[name], values, strict=True)]

    def to_json(self) -> dict[str, object]:
        """For people and programs."""
        return {
            "num_steps": self.num_steps,
            "num_steps_with_outcome": self.num_outcomes,
            "num_same_budget": self.num_same,
            "recorded": self._side("recorded"),
            "new": self._side("new"),
        }

    def _side(self, name: str) -> dict[str, float]:
        budget, expected, tokens, ms, regret = self.sums[name]
        steps, outcomes = max(1, self.num_steps), max(1, self.num_outcomes)
        return {
            "mean_budget": budget / steps,
            "mean_expected_tokens": expected / steps,
            "tokens_per_step": tokens / outcomes,
            "tokens_per_second": tokens / ms * _MS_PER_SECOND if ms else 0.0,
            "regret_tokens_per_step": regret / outcomes,
        }


def replay(files: Iterable[TraceFile], policy: BuiltPolicy) -> Iterator[ReplayedStep]:
    """Decide every step of the files anew, in order, by what the policy learned on the way."""
    for file in files:
        table = cost_model_from_message(file.cost, file.max_draft_tokens).compile()
        prior = new_running_mean(file.max_draft_tokens)
        for step in file.steps:
            outcome = decide(step.inputs, policy, table, prior)
            cap = NO_BUDGET_CAP if outcome.max_verify_len is None else outcome.max_verify_len
            yield _judge(step, table, outcome.budget, cap, outcome.expected_tokens)


def _judge(
    step: RecordedStep, table: CostTable, budget: int, cap: int, expected_tokens: float
) -> ReplayedStep:
    if step.outcome is None:
        recorded = Side(step.budget, step.expected_tokens)
        return ReplayedStep(step.step_id, recorded, Side(budget, expected_tokens), False)
    outcome = step.outcome
    rows = np.arange(outcome.num_other_tokens + int(outcome.num_drafts.sum()) + 1)
    prices = verify_ms(table, rows) if len(table.verify_ms) else np.zeros(len(rows))
    hindsight = Hindsight(outcome, np.asarray(prices, dtype=np.float64))
    num_run = len(outcome.num_drafts) + float(outcome.num_accepted.sum())
    recorded = Side(
        step.budget, step.expected_tokens, num_run, outcome.measured_ms, hindsight.run_regret()
    )
    new = Side(
        budget,
        expected_tokens,
        hindsight.tokens(budget, cap),
        hindsight.ms(budget, cap),
        hindsight.regret(budget, cap),
    )
    return ReplayedStep(step.step_id, recorded, new, True)
