"""What steps took beside what was predicted for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from specsched_protocol.histogram import Histogram
from specsched_protocol.shm import report_ring as ring

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.decision.reference import verify_ms
from specsched_scheduler.planner import RecentDecision

from .catalogue import RATIO_BOUNDS

__all__ = ["JudgedStep", "StepJudge"]

_MAX_WAITING = 1024
"""Decisions whose report may still come."""


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step that was decided here and carried out. plain_ms: for its tokens without drafts."""

    step_id: int
    num_rows: int
    budget: int
    predicted_ms: float
    measured_ms: float
    plain_ms: float


@dataclass(slots=True)
class StepJudge:
    """Joins decisions with the reports of their steps. One writer; totals since the begin.

    Steps of which nothing was predicted (no cost model) are left out, and those that another
    scheduler decided: their rows were not chosen here.
    """

    num_steps: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0
    plain_s: float = 0.0
    newest: JudgedStep | None = None
    ratios: Histogram = field(default_factory=lambda: Histogram(RATIO_BOUNDS))
    _waiting: dict[int, RecentDecision] = field(default_factory=dict)

    def decided(self, decisions: Iterable[RecentDecision]) -> None:
        """Steps that may be reported from now on."""
        for each in decisions:
            self._waiting[each.decision.step_id] = each
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def finished(
        self, steps: FinishedSteps, table: CostTable, *, is_followed: bool
    ) -> list[JudgedStep]:
        """Those of the steps that can be judged, in order. table: that decisions go by."""
        ids = steps.words[ring.STEP_ID].tolist()
        decided = [self._waiting.pop(step_id, None) for step_id in ids]
        if not ids or not is_followed or not table.has_model:
            return []
        judged = []
        for decision, outcome in zip(decided, _outcomes(steps, table), strict=True):
            step = None if decision is None else _judge(decision, outcome)
            if step is not None:
                self._add(step)
                judged.append(step)
        return judged

    def _add(self, step: JudgedStep) -> None:
        self.newest = step
        self.num_steps += 1
        self.predicted_s += step.predicted_ms / 1e3
        self.measured_s += step.measured_ms / 1e3
        self.plain_s += step.plain_ms / 1e3
        self.ratios.observe(step.measured_ms / step.predicted_ms)


class _Outcome(NamedTuple):
    """What became of a step. plain_ms: see JudgedStep."""

    num_rows: int
    num_verified: int
    num_sampling: int
    measured_ms: float
    plain_ms: float


def _outcomes(steps: FinishedSteps, table: CostTable) -> list[_Outcome]:
    words, floats = steps.words, steps.words.view(np.float64)
    num_verified, num_accepted = (
        np.diff(np.append(0, np.cumsum(counts, dtype=np.int64))[steps.row_begin])
        for counts in (steps.num_verified, steps.num_accepted)
    )
    num_rows, num_sampling = words[ring.NUM_TOKENS], words[ring.NUM_SAMPLING]
    # A prefill chunk is run once, with drafts or without.
    plain_ms = verify_ms(table, np.maximum(num_rows - num_verified, 0))
    steps_more = num_accepted / np.maximum(num_sampling, 1)
    plain_ms += steps_more * verify_ms(table, num_sampling)
    measured_ms = floats[ring.DRAFT_MS_BITS] + floats[ring.VERIFY_MS_BITS]
    columns = (num_rows, num_verified, num_sampling, measured_ms, plain_ms)
    return [_Outcome(*row) for row in zip(*(each.tolist() for each in columns), strict=True)]


def _judge(decided: RecentDecision, outcome: _Outcome) -> JudgedStep | None:
    decision, measured_ms = decided.decision, outcome.measured_ms
    is_possible = decision.expected_ms > 0.0 and 0.0 < measured_ms < float("inf")
    is_its_own = outcome.num_verified <= decision.budget
    if not is_possible or not is_its_own or not outcome.num_sampling:
        return None
    return JudgedStep(
        step_id=decision.step_id,
        num_rows=outcome.num_rows,
        budget=decision.budget,
        predicted_ms=decision.expected_ms,
        measured_ms=measured_ms,
        plain_ms=outcome.plain_ms,
    )
