"""The thread that learns from one executor's steps. Decisions never wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from specsched_protocol.recurring_failure import RecurringFailure

from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.draft_length import DraftLengthPlan
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.document import Entry
from specsched_scheduler.learning.learner import Learner
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.planner import Lesson, Planner, PolicySelection

__all__ = ["LearningThread"]

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

_MIN_INTERVAL_S = 0.05
"""The report ring holds 128 steps: more than twice what the fastest executor does meanwhile."""
_SHORT_INTERVAL_S, _LONG_INTERVAL_S = 0.25, 1.0
"""Between two wake-ups where the planner does not ring: after one that changed decisions, or that
brought steps of a load that is new, and after some that did not. What a wake-up costs is shared by
the steps that came since the last one."""
_REST_PER_WORK = 99.0
"""Time after a fit, in the CPU time that it took, before the next one: a hundredth of a core, which
the target's steps may need, and of the interpreter that the event loop needs too."""
_NICENESS = 10
"""Of the learner's thread above the process's own: learning waits, deciding and serving do not.
The compiled planner needs no interpreter, so it cannot wait for one that is held up."""


class LearningThread:
    """Takes a planner's reports and confidences, learns, tells the planner and `on_calibration`.

    on_calibration: called with each calibration that decisions go by, the first one included, from
    this thread or that of `set_policy`; on_reports: with finished steps; on_followed: with those
    and the confidences that came with them, once both are observed. Set them before `start`. All
    methods may be called from any thread; they may wait for a fit, which takes up to some tens of
    milliseconds.
    """

    def __init__(self, planner: Planner, learner: Learner) -> None:
        self.on_calibration: Callable[[Calibration], object] = lambda _: None
        self.on_reports: Callable[[FinishedSteps], object] = lambda _: None
        self.on_followed: Callable[[FinishedSteps, DraftedSteps], object] = lambda *_: None
        self.num_publications = 0
        self.num_probes = 0
        self._planner = planner
        self._learner = learner
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._next_fit_s = 0.0
        self._num_decided = 0
        self._has_unfitted = False
        self._must_publish = True
        self._told: Calibration | None = None
        self._failure = RecurringFailure("learning failed, it goes on frozen")

    def start(self) -> None:
        """Have decisions go by what is known, then begin to learn. Once."""
        with self._lock:
            self._planner.set_draft_plans(self._learner.draft_length.plan_words())
            self._told = None
            self._publish()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait until it has."""
        self._stopping.set()
        self._planner.lesson_bell.ring()
        if self._thread.is_alive():
            self._thread.join()

    def restore(self, entry: Entry) -> None:
        """Go on from what was learned elsewhere, frozen or not."""
        with self._lock:
            self._learner.restore(entry)
            self._planner.set_draft_plans(self._learner.draft_length.plan_words())
            self._must_publish = True
        self._planner.lesson_bell.ring()

    def take_over(self, entry: Entry) -> bool:
        """Go on from what another scheduler learned of the same executor, unless more is known here
        already: one that is followed again has seen all that its successor saw. Whether it did."""
        with self._lock:
            if self._learner.knows_more(entry):
                return False
        self.restore(entry)
        return True

    def begin_with(self, calibration: Calibration) -> None:
        """Go on from a calibration that was measured beforehand."""
        with self._lock:
            self._learner.calibrator.restore(calibration)
            self._must_publish = True

    def set_frozen(self, *, is_frozen: bool) -> None:
        """Keep what was learned as it is, or go on learning."""
        with self._lock:
            self._learner.is_frozen = is_frozen
            if is_frozen:
                self._planner.ask_probe(0)

    def set_profile(self, profile: CostModel, fingerprint: str) -> None:
        """Price steps by another profile, and learn anew what it is off by."""
        with self._lock:
            self._learner.set_profile(profile, fingerprint)
            self._planner.set_cost_model(profile)
            self._planner.set_draft_plans(self._learner.draft_length.plan_words())
            self._planner.ask_probe(0)

    def set_policy(self, policy: PolicySelection) -> None:
        """Plan and learn by another policy from the next decision on.

        What was learned comes along, as the policy may leave some of it out.
        """
        with self._lock:
            self._learner.set_policy(policy.code, policy.left_out)
            self._planner.set_policy(policy, self._lesson())
            self._planner.set_draft_plans(self._learner.draft_length.plan_words())
            self._must_publish = False
            self._tell_calibration()

    @property
    def num_failures(self) -> int:
        """Times that learning failed; it is frozen from the first one until it is resumed."""
        return self._failure.num_failures

    def entry(self) -> Entry:
        """What was learned."""
        with self._lock:
            return self._learner.entry()

    def look(self, read: Callable[[Learner], _T]) -> _T:
        """What `read` makes of the learner while nothing changes."""
        with self._lock:
            return read(self._learner)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICENESS)
        interval_s = _SHORT_INTERVAL_S
        while not self._stopping.wait(_MIN_INTERVAL_S):
            self._planner.lesson_bell.wait(interval_s - _MIN_INTERVAL_S)
            before, has_come = self._decided_by(), False
            try:
                with self._lock:
                    has_come = self._follow()
            except Exception as error:  # noqa: BLE001 - deciding goes on without learning
                self._learner.is_frozen = True
                self._failure.tell(error)
            longer_s = min(2.0 * interval_s, _LONG_INTERVAL_S)
            is_load_new = has_come and self._learner.draft_length.is_load_new
            is_quiet = self._decided_by() == before and not is_load_new
            interval_s = longer_s if is_quiet else _SHORT_INTERVAL_S

    def _decided_by(self) -> tuple[DraftLengthPlan, int]:
        """What changes when decisions come to be made otherwise."""
        return self._learner.draft_length.plan, self.num_publications

    def _follow(self) -> bool:
        """Learn from what came, if anything did, and publish what is due; whether anything came."""
        num_before, self._num_decided = self._num_decided, self._planner.num_decisions
        # Reports first: the confidences of their drafts were seen before they were written.
        steps = self._planner.drain_reports()
        drafted = self._planner.drain_confidences()
        has_come = bool(
            steps.words.size or drafted.source_step_id.size or self._num_decided != num_before
        )
        if has_come:
            self._observe(steps, drafted)
        if self._has_unfitted and time.monotonic() >= self._next_fit_s:
            self._fit()
        if self._must_publish and self._planner.can_publish:
            self._publish()
        if has_come and (probe_rows := self._learner.probe_rows()):
            self._planner.ask_probe(probe_rows)
            self.num_probes += 1
        return has_come

    def _observe(self, steps: FinishedSteps, drafted: DraftedSteps) -> None:
        self.on_reports(steps)
        self._learner.observe(steps, drafted)
        self._planner.set_draft_plans(self._learner.draft_length.plan_words())
        self._has_unfitted = True
        self._tell_followed(steps, drafted)

    def _fit(self) -> None:
        began_s = time.thread_time()
        self._must_publish |= self._learner.update()
        self._has_unfitted = False
        worked_s = time.thread_time() - began_s
        self._next_fit_s = time.monotonic() + worked_s * _REST_PER_WORK

    def _tell_followed(self, steps: FinishedSteps, drafted: DraftedSteps) -> None:
        try:
            self.on_followed(steps, drafted)
        except Exception:  # noqa: BLE001 - learning goes on without whoever looks on
            _log.exception("what was learned from could not be told")
            self.on_followed = lambda *_: None

    def _lesson(self) -> Lesson:
        learner = self._learner
        return Lesson(learner.calibration.compile(), learner.table)

    def _publish(self) -> None:
        if not self._planner.publish(self._lesson()):
            return  # no step was decided since the last time
        self._must_publish = False
        self.num_publications += 1
        self._tell_calibration()

    def _tell_calibration(self) -> None:
        calibration = self._learner.calibration
        if self._told is None or not calibration.equals(self._told):
            self._told = calibration
            self.on_calibration(calibration)
