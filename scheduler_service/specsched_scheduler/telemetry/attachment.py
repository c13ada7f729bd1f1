"""What one attachment's metrics and page are made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.learner import Learner
from specsched_scheduler.learning.pairing import Classified, DraftedSteps
from specsched_scheduler.planner import Planner, PlannerCounters

from .decisions import DecisionLog
from .freezing import FreezeWatch
from .outcomes import DraftOutcomes
from .steps import StepJudge

__all__ = ["AttachmentTelemetry"]

_T = TypeVar("_T")

_TABLE_DRAFTERS = frozenset({"ngram"})
"""Drafters whose confidences are not computed from what they draft."""


class AttachmentTelemetry:
    """Fed by the learner's thread after decisions are out; looked at from any thread.

    is_followed: whether the executor carries out what is decided here; any thread may set it.
    decisions, steps, outcomes, freezing: the parts, to be looked at through `look`.
    """

    def __init__(self, planner: Planner, learner: Learner) -> None:
        kind = learner.kind
        self.is_followed = False
        self.decisions = DecisionLog()
        self.steps = StepJudge()
        self.outcomes = DraftOutcomes(kind.max_draft_tokens)
        self.freezing = FreezeWatch(is_judged=kind.drafter not in _TABLE_DRAFTERS)
        self._planner = planner
        self._learner = learner
        self._lock = threading.Lock()
        self._paired: list[Classified] = []
        self._last_index = 0
        learner.on_paired = self._paired.append

    def follow(self, steps: FinishedSteps, drafted: DraftedSteps) -> None:
        """Take in what the learner has just observed, and decisions that came meanwhile.

        Belongs to the learner's thread, before it fits anew: drafts are judged by the calibration
        that they were decided by.
        """
        decisions = self._planner.recent_decisions(self._last_index, max_decisions=1024)
        now_s = time.time()
        with self._lock:
            if decisions:
                self._last_index = decisions[-1].index
                self.decisions.observe(decisions, now_s)
                self.steps.decided(decisions)
            table = self._planner.table
            judged = self.steps.finished(steps, table, is_followed=self.is_followed)
            if judged:
                second = self.decisions.second(now_s)
                second.num_judged_steps += len(judged)
                second.predicted_ms += sum(step.predicted_ms for step in judged)
                second.measured_ms += sum(step.measured_ms for step in judged)
                second.plain_ms += sum(step.plain_ms for step in judged)
            self.outcomes.observe(self._learner.calibrator.calibration, self._paired)
            self._paired.clear()
            self.freezing.observe(drafted)

    def planner_counters(self) -> PlannerCounters:
        """The planner's totals, as they are now."""
        return self._planner.counters()

    def look(self, read: Callable[[AttachmentTelemetry], _T]) -> _T:
        """What `read` makes of it while nothing changes; what came since is taken in soon."""
        with self._lock:
            seen = read(self)
        self._planner.lesson_bell.ring()
        return seen
