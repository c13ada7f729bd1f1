"""The planner: one thread that answers one executor's plan requests."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.fairness import RecentTokens
from specsched_protocol.shm.lane import heartbeat_ns
from specsched_protocol.shm.plan_area import latest_publication
from specsched_protocol.shm.plan_arrays import STEP_ID, GatheredConfidences

from specsched_scheduler.decision.calibration import identity_table
from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.planner import _ring as ring
from specsched_scheduler.planner import _state as state_words
from specsched_scheduler.planner._bell import LessonBell
from specsched_scheduler.planner._history import drain_confidences, room_for_steps
from specsched_scheduler.planner._latency import durations_ns, quantile_ns
from specsched_scheduler.planner._learned import (
    LearnedBuffers,
    Lesson,
    ask_probe,
    has_room,
    new_learned,
    publish_learned,
)
from specsched_scheduler.planner._loop import NEEDS_PYTHON, publish_plan, run_loop
from specsched_scheduler.planner._python import FailureLog, decide_in_python
from specsched_scheduler.planner._recent import unpack_entry
from specsched_scheduler.planner._state import (
    Settings,
    SharedWords,
    new_loop_state,
    set_draft_plans,
    set_generation,
)
from specsched_scheduler.planner._tape import TapedStep, drain_steps
from specsched_scheduler.planner.records import (
    PlannedStep,
    PlannerConfig,
    PlannerCounters,
    PolicyFailure,
    PolicySelection,
    PythonPolicy,
    RecentDecision,
)
from specsched_scheduler.planner.regions import SchedulerRegions
from specsched_scheduler.planner.reports import ReportReader

__all__ = ["Planner"]

_STEPS_PER_LESSON = 32
_NS_PER_US = 1e3
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Everything the loop is entered with, replaced as a whole. What is learned changes inside."""

    settings: Settings
    learned: LearnedBuffers
    decide: PythonPolicy | None


class Planner:
    """Plans the steps of one executor on a thread of its own, without the GIL.

    `start`, `stop`, `set_policy` and `set_cost_model` may be called from any thread; none of them
    waits for a step. `drain_*`, `publish`, `can_publish` and `ask_probe` belong to one thread, the
    learner's; lesson_bell wakes it. Call `warm_up` once per process first.
    """

    def __init__(
        self,
        regions: SchedulerRegions,
        policy: PolicySelection,
        cost_model: CostModel,
        config: PlannerConfig | None = None,
    ) -> None:
        self._regions = regions
        self._config = config or PlannerConfig()
        self._wake = OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.lesson_bell = LessonBell()
        executor = regions.executor
        self._memory = SharedWords(executor.words, regions.lane.words, executor.layout)
        self._recent_tokens = RecentTokens(executor.layout.max_requests)
        self._state = new_loop_state(
            executor.layout, self._recent_tokens, is_recording=self._config.is_recording
        )
        self._reports = ReportReader(executor)
        self.num_lost_confidences = 0
        self._failures = FailureLog()
        self._lock = threading.Lock()
        self._is_stopping = False
        self._began_ns = time.monotonic_ns()
        k = executor.layout.max_draft_tokens
        self._lesson = Lesson(identity_table(k), cost_model.compile())
        learned = new_learned(self._lesson)
        self._inputs = _Inputs(self._settings(policy), learned, policy.decide)
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        # A request that is waiting already may still be answered in time.
        waiting = int(latest_publication(executor.words, executor.layout))
        self._state.counters[state_words.SEEN_PUBLICATION] = max(waiting - 1, 0)

    # ===================== Control =====================

    def start(self) -> None:
        """Begin to answer. Once."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end, and wait until it has: at most one decision. Idempotent."""
        self._is_stopping = True
        self._interrupt(self._inputs)
        if self._thread.is_alive():
            self._thread.join()

    def set_policy(self, policy: PolicySelection, lesson: Lesson | None = None) -> None:
        """Plan by `policy`, and by `lesson` if there is one, from the next decision on."""
        with self._lock:
            learned = self._inputs.learned
            if lesson is not None:
                self._lesson, learned = lesson, new_learned(lesson)
            self._interrupt_locked(_Inputs(self._settings(policy), learned, policy.decide))

    def set_cost_model(self, cost_model: CostModel) -> None:
        """Price steps by another profile from the next decision on."""
        table = cost_model.compile()
        with self._lock:
            current = self._inputs
            self._lesson = self._lesson._replace(cost=table)
            learned = new_learned(self._lesson)
            self._interrupt_locked(_Inputs(current.settings, learned, current.decide))

    def publish(self, lesson: Lesson) -> bool:
        """Decide by what was learned from the next decision on, without disturbing this one.

        False, and nothing, unless `can_publish` and its costs are of the sizes of the profile.
        """
        with self._lock:
            has_its_shape = [np.shape(each) for each in lesson.cost] == [
                np.shape(each) for each in self._lesson.cost
            ]
            if not has_its_shape or not publish_learned(self._inputs.learned, lesson):
                return False
            self._lesson = lesson
            return True

    @property
    def can_publish(self) -> bool:
        """Whether a decision has gone by what was published last: else try again later."""
        return has_room(self._inputs.learned)

    def set_draft_plans(self, words: npt.NDArray[np.int64]) -> None:
        """Have drafts be as long as DraftLength.plan_words says from the next decision on."""
        set_draft_plans(self._state, words)

    def ask_probe(self, num_rows: int) -> None:
        """Have one step of so many rows be run as soon as there is one that can; 0: none."""
        ask_probe(self._inputs.learned, num_rows)

    @property
    def is_running(self) -> bool:
        """Whether the thread lives: false before `start`, after `stop` and after a fault."""
        return self._thread.is_alive()

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last told that it lives, as with every sleep and decision."""
        beat_ns = max(int(heartbeat_ns(self._regions.lane.words)), self._began_ns)
        return max(0.0, (time.monotonic_ns() - beat_ns) / _NS_PER_S)

    # ===================== Observation =====================

    def counters(self) -> PlannerCounters:
        """A snapshot; single numbers are exact, their sum may be one step apart."""
        counters = self._state.counters
        return PlannerCounters(
            num_decisions=self.num_decisions,
            num_missed_requests=int(counters[state_words.NUM_MISSED]),
            num_torn_reads=int(counters[state_words.NUM_TORN]),
            num_invalid_requests=int(counters[state_words.NUM_INVALID]),
            num_repaired_confidences=int(counters[state_words.NUM_REPAIRED]),
            num_missing_confidences=int(counters[state_words.NUM_MISSING_CONFIDENCES]),
            num_policy_errors=int(counters[state_words.NUM_POLICY_ERRORS]),
            num_reports=self._reports.num_reports,
            num_lost_reports=self._reports.num_lost,
            last_step_id=self.last_step_id,
            plan_us_p50=quantile_ns(self._state.histogram, 0.50) / _NS_PER_US,
            plan_us_p99=quantile_ns(self._state.histogram, 0.99) / _NS_PER_US,
        )

    @property
    def newest_failure(self) -> PolicyFailure | None:
        """Of a policy; None: none has failed."""
        return self._failures.newest

    @property
    def num_decisions(self) -> int:
        """Decisions made so far."""
        return int(self._state.counters[state_words.NUM_DECISIONS])

    @property
    def last_step_id(self) -> int:
        """Step of the newest decision."""
        return int(self._state.counters[state_words.LAST_STEP_ID])

    @property
    def table(self) -> CostTable:
        """What steps are priced by."""
        return self._lesson.cost

    def latencies(self) -> list[tuple[float, int]]:
        """(seconds from seeing a request to its decision, how many took so long), to 1/16."""
        return [(ns / 1e9, count) for ns, count in durations_ns(self._state.histogram)]

    def recent_decisions(self, after: int = 0, max_decisions: int = 64) -> list[RecentDecision]:
        """The newest decisions whose index is above `after`, oldest first."""
        num_new = max(int(ring.newest_index(self._state.ring)) - after, 0)
        out = np.zeros((min(num_new, max_decisions), ring.ENTRY_WORDS), dtype=np.int64)
        count = int(ring.read_after(self._state.ring, after, out))
        return [unpack_entry(entry) for entry in out[:count]]

    def drain_reports(self) -> FinishedSteps:
        """Reports of finished steps that came since the last call; losses are counted.

        Recent tokens are counted on the way.
        """
        steps = self._reports.drain()
        self._recent_tokens.observe(steps.slot_id, steps.generation, steps.num_accepted + 1)
        return steps

    def drain_confidences(self) -> DraftedSteps:
        """Confidences of steps decided since the last call; losses are counted."""
        steps, self.num_lost_confidences = drain_confidences(self._state.history)
        return steps

    def drain_steps(self) -> tuple[list[TapedStep], int]:
        """(whole steps decided since the last call, steps that were left out since the begin)."""
        return drain_steps(self._state.tape)

    # ===================== Inside =====================

    def _settings(self, policy: PolicySelection) -> Settings:
        decided = self._regions.decided
        return Settings(
            generation=0,
            epoch=self._regions.lane.epoch,
            policy_id=policy.policy_id,
            rule=policy.rule,
            doorbell_fd=self._regions.doorbell.fileno(),
            wake_fd=self._wake.fileno(),
            decided_fd=-1 if decided is None else decided.fileno(),
            learner_fd=self.lesson_bell.fileno(),
            steps_per_lesson=min(_STEPS_PER_LESSON, room_for_steps(self._state.history) // 4),
            spin_ns=int(self._config.spin_us * _NS_PER_US),
            poll_ms=self._config.heartbeat_ms,
        )

    def _interrupt(self, inputs: _Inputs) -> None:
        with self._lock:
            self._interrupt_locked(inputs)

    def _interrupt_locked(self, inputs: _Inputs) -> None:
        """Replace the inputs, then make the running loop return to pick them up."""
        generation = self._inputs.settings.generation + 1
        settings = inputs.settings._replace(generation=generation)
        self._inputs = _Inputs(settings, inputs.learned, inputs.decide)
        set_generation(self._state, generation)
        os.eventfd_write(self._wake.fileno(), 1)

    def _run(self) -> None:
        if self._config.core is not None:
            os.sched_setaffinity(threading.get_native_id(), {self._config.core})
        while not self._is_stopping:
            inputs = self._inputs
            reason = run_loop(self._memory, inputs.settings, inputs.learned, self._state)
            if reason == NEEDS_PYTHON and inputs.decide is not None:
                self._decide_in_python(inputs, inputs.decide)

    def _decide_in_python(self, inputs: _Inputs, decide: PythonPolicy) -> None:
        state = self._state
        gathered = GatheredConfidences(state.gathered.num_valid, state.calibrated)
        step = PlannedStep(state.request, gathered, self._lesson.cost, state.prior)
        try:
            plan = decide_in_python(decide, step)
            publish_plan(self._memory, inputs.settings, state, plan)
        except Exception as error:  # noqa: BLE001 - foreign code must not end the planner
            step_id = int(state.request.fixed[STEP_ID])
            self._failures.note(inputs.settings.policy_id, step_id, error)
            state.counters[state_words.NUM_POLICY_ERRORS] += 1
