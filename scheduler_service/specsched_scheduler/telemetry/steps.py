"""What steps took beside what was predicted for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specsched_protocol.histogram import Histogram
from specsched_protocol.plan import StepReport

from specsched_scheduler.decision._price import verify_ms_at
from specsched_scheduler.decision.cost import CostTable
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
    _waiting: OrderedDict[int, RecentDecision] = field(default_factory=OrderedDict)

    def decided(self, decisions: Iterable[RecentDecision]) -> None:
        """Steps that may be reported from now on."""
        for each in decisions:
            self._waiting[each.decision.step_id] = each
        while len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)

    def finished(
        self, reports: Sequence[StepReport], table: CostTable, *, is_followed: bool
    ) -> list[JudgedStep]:
        """Those of the steps that can be judged, in order. table: that decisions go by."""
        judged = []
        for report in reports:
            decided = self._waiting.pop(report.step_id, None)
            if decided is None or not is_followed or not table.has_model:
                continue
            step = _judge(decided, report, table)
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


def _judge(decided: RecentDecision, report: StepReport, table: CostTable) -> JudgedStep | None:
    predicted_ms = decided.decision.expected_ms
    measured_ms = report.draft_ms + report.verify_ms
    num_verified = int(report.num_verified.sum())
    is_possible = predicted_ms > 0.0 and 0.0 < measured_ms < float("inf")
    if not is_possible or num_verified > decided.decision.budget or not report.num_sampling:
        return None
    rows_without = report.num_tokens - num_verified
    tokens = report.num_sampling + int(report.num_accepted.sum())
    # A prefill chunk is run once, with drafts or without.
    rows_each = report.num_sampling
    plain_ms = float(verify_ms_at(table, rows_without))
    plain_ms += (tokens / report.num_sampling - 1.0) * float(verify_ms_at(table, rows_each))
    return JudgedStep(
        step_id=report.step_id,
        num_rows=report.num_tokens,
        budget=decided.decision.budget,
        predicted_ms=predicted_ms,
        measured_ms=measured_ms,
        plain_ms=plain_ms,
    )
