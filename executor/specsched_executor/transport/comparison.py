"""What a shadow would have done, held against what was done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.hindsight import Hindsight, StepOutcome
from specsched_protocol.plan import ConfidenceRows, PlanRequest, StepDecision, StepReport
from specsched_protocol.v1 import scheduler_pb2

from specsched_executor.transport.lane_health import LaneHealth

__all__ = ["ComparedStep", "LaneTally", "hindsight_of", "warm_up"]


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A finished step that was decided by the active lane and by shadows.

    active: the decision carried out; shadows: those of other lanes with their tallies. rows,
    weights: confidences of the drafts that the step verified and who weighed how much, as far as
    they were published; report: the outcome.
    """

    active: StepDecision
    shadows: tuple[tuple[LaneTally, StepDecision], ...]
    rows: ConfidenceRows | None
    weights: PlanRequest | None
    report: StepReport

    def tally(self, verify_ms: npt.NDArray[np.float64]) -> None:
        """Add the step to the tally of each shadow."""
        hindsight = hindsight_of(self.report, self.rows, self.weights, verify_ms)
        active_regret = hindsight.run_regret()
        for tally, decision in self.shadows:
            regret = hindsight.regret(decision.budget, decision.max_verify_len)
            tally.add(decision, self.active, regret, active_regret)


@dataclass(slots=True)
class LaneTally:
    """Sums over the compared steps of one lane. One thread writes, any may read."""

    num_steps: int = 0
    num_same: int = 0
    num_skipped: int = 0
    budget_difference: int = 0
    absolute_budget_difference: int = 0
    expected_tokens: float = 0.0
    active_expected_tokens: float = 0.0
    expected_ms: float = 0.0
    active_expected_ms: float = 0.0
    regret: float = 0.0
    active_regret: float = 0.0

    def add(
        self, its: StepDecision, active: StepDecision, regret: float, active_regret: float
    ) -> None:
        """One more step: two decisions and the tokens each lost against the best one."""
        difference = its.budget - active.budget
        self.num_same += difference == 0 and its.max_verify_len == active.max_verify_len
        self.budget_difference += difference
        self.absolute_budget_difference += abs(difference)
        self.expected_tokens += its.expected_tokens
        self.active_expected_tokens += active.expected_tokens
        self.expected_ms += its.expected_ms
        self.active_expected_ms += active.expected_ms
        self.regret += regret
        self.active_regret += active_regret
        self.num_steps += 1

    @property
    def mean_regret(self) -> float:
        """Tokens lost per step; 0 before the first."""
        return self.regret / max(1, self.num_steps)

    def to_message(self, health: LaneHealth) -> scheduler_pb2.LaneComparison:
        """Means per step, with what became of all steps that the lane was asked about."""
        n = max(1, self.num_steps)
        return scheduler_pb2.LaneComparison(
            num_steps=self.num_steps,
            num_same_decisions=self.num_same,
            mean_budget_difference=self.budget_difference / n,
            mean_absolute_budget_difference=self.absolute_budget_difference / n,
            mean_expected_tokens=self.expected_tokens / n,
            mean_active_expected_tokens=self.active_expected_tokens / n,
            mean_expected_ms=self.expected_ms / n,
            mean_active_expected_ms=self.active_expected_ms / n,
            mean_regret_tokens=self.regret / n,
            mean_active_regret_tokens=self.active_regret / n,
            num_skipped_steps=self.num_skipped,
            num_faults={str(reason): count for reason, count in list(health.num_faults.items())},
            num_sound_decisions=health.num_sound,
        )


def hindsight_of(
    report: StepReport,
    rows: ConfidenceRows | None,
    weights: PlanRequest | None,
    verify_ms: npt.NDArray[np.float64],
) -> Hindsight:
    """Judges other decisions for the step of `report`.

    A request whose confidences are not in `rows` has no drafts but those that were verified.
    """
    num_verified = report.num_verified.astype(np.int64)
    num_drafts = num_verified.copy()
    k = int(num_verified.max(initial=0)) if rows is None else rows.confidence.shape[1]
    confidence = np.full((len(num_verified), k), np.nan)
    ours = _keys(report.slot_id, report.generation)
    if rows is not None:
        found, row = _match(ours, _keys(rows.slot_id, rows.generation))
        confidence[found] = rows.confidence[row]
        num_drafts[found] = np.maximum(num_verified[found], rows.num_draft_tokens[row])
    weight = np.ones(len(num_verified))
    if weights is not None:
        found, row = _match(ours, _keys(weights.slot_id, weights.generation))
        weight[found] = weights.weight[row]
    outcome = StepOutcome(
        num_drafts=num_drafts,
        num_verified=num_verified,
        num_accepted=report.num_accepted.astype(np.int64),
        confidence=confidence,
        weight=weight,
        num_other_tokens=report.num_tokens - int(num_verified.sum()),
        measured_ms=max(report.verify_ms + report.draft_ms, 1e-6),
    )
    return Hindsight(outcome, verify_ms)


def warm_up() -> None:
    """Load what is compiled."""
    one = np.ones(1, dtype=np.int64)
    outcome = StepOutcome(one, one, one, np.ones((1, 1)), np.ones(1), 1, 1.0)
    Hindsight(outcome, np.ones(3)).regret(1)


Keys = npt.NDArray[np.int64]


def _keys(slots: npt.NDArray[np.uint32], generations: npt.NDArray[np.uint32]) -> Keys:
    """What tells requests apart, [R]."""
    return slots.astype(np.int64) << 32 | generations


def _match(ours: Keys, others: Keys) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Indices of the requests that both know, on either side."""
    if np.array_equal(ours, others):
        same = np.arange(len(ours))
        return same, same
    _, found, row = np.intersect1d(ours, others, assume_unique=True, return_indices=True)
    return found, row
