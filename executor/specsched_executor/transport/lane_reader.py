"""Reading lanes: the engine's thread only."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.plan import ConfidenceRows, FallbackReason, PlanRequest, StepDecision
from specsched_protocol.shm import lane as lane_words
from specsched_protocol.shm.layout import DECISION_WORDS
from specsched_protocol.shm.seqlock import OK, TORN

from specsched_executor.transport.judging import PublishedStep, judge_decision
from specsched_executor.transport.lanes import Lane, LaneView

__all__ = ["AskedStep", "LaneReader"]

_MAX_READ_TRIES = 32
_MAX_FAULTS_AWAITED = 8
"""Steps in a row without a decision, after which one is not waited for."""

Outcome = StepDecision | FallbackReason


@njit(cache=True)
def _read_decision(words: Any, step_id: int, max_tries: int, decision: Any) -> Any:
    """As lane.read_decision, but keeps the GIL: getting it back could take milliseconds."""
    return lane_words.read_decision(words, step_id, max_tries, decision)


@dataclass(slots=True)
class AskedStep:
    """A step whose plan was asked for. lanes: whose doorbell was rung.

    rows: confidences published along with it, of the drafts that the step BEFORE it verifies.
    Once its plan was read: when that was, lane and decision that are followed, if any; shadows:
    what other lanes had decided by then, None: nobody has looked.
    """

    request: PlanRequest
    rows: ConfidenceRows | None
    lanes: tuple[Lane, ...]
    facts: PublishedStep = field(init=False)
    lane: Lane | None = None
    decision: StepDecision | None = None
    read_ns: int = 0
    shadows: tuple[tuple[Lane, StepDecision], ...] | None = None

    def __post_init__(self) -> None:
        self.facts = PublishedStep.of(self.request)


class LaneReader:
    """Reads and judges decisions, and keeps each lane's health."""

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._words: npt.NDArray[np.int64] = np.zeros(DECISION_WORDS, dtype=np.int64)
        self._floats = self._words.view(np.float64)

    def read(self, view: LaneView, step_id: int, asked: AskedStep | None) -> Outcome:
        """The decision to follow at `step_id`, or why there is none.

        A switch that is begun happens here, at the first step whose plan the new lane has ready.
        """
        followed = view.followed
        if asked is None:
            return FallbackReason.NO_SCHEDULER if followed is None else FallbackReason.LATE
        asked.read_ns = time.monotonic_ns()
        fault = FallbackReason.NO_SCHEDULER
        for lane in view.candidates():
            outcome = self.judged(lane, step_id, asked)
            if isinstance(outcome, StepDecision):
                if view.switch is not None and lane is not followed:
                    view.switch.step_id = step_id
                return self._follow(lane, asked, outcome)
            if lane is followed:
                fault = outcome
        return fault if followed is None else self._follow(followed, asked, fault)

    def await_decision(self, lane: Lane, step_id: int, until_ns: int) -> None:
        """Return when the lane has a decision for `step_id`, at `until_ns` at last.

        Keeps the interpreter: whoever took it meanwhile could hold it for longer than that.
        """
        words = lane.region.words
        if lane.health.fault_run >= _MAX_FAULTS_AWAITED:
            return
        while _read_decision(words, step_id, _MAX_READ_TRIES, self._words) != OK:
            if time.monotonic_ns() >= until_ns:
                return

    def judged(self, lane: Lane, step_id: int, asked: AskedStep) -> Outcome:
        """The lane's decision for `step_id`, or why there is none that may be followed."""
        status = _read_decision(lane.region.words, step_id, _MAX_READ_TRIES, self._words)
        if status == TORN:
            return FallbackReason.TORN
        if status != OK:
            return FallbackReason.LATE
        decision = self._unpack()
        reason = judge_decision(decision, asked.facts, lane.epoch, self._max_draft_tokens)
        return decision if reason is None else reason

    def warm_up(self, lane: Lane) -> None:
        """Load what is compiled."""
        _read_decision(lane.region.words, 0, 1, self._words)
        lane_words.heartbeat_ns(lane.region.words)

    @staticmethod
    def _follow(lane: Lane, asked: AskedStep, outcome: Outcome) -> Outcome:
        asked.lane = lane
        if isinstance(outcome, StepDecision):
            asked.decision = outcome
            lane.health.sound()
        elif lane in asked.lanes:  # one that was made ready later had no chance
            lane.health.fault(outcome, asked.read_ns)
        return outcome

    def _unpack(self) -> StepDecision:
        words = self._words.tolist()
        return StepDecision(
            step_id=words[lane_words.STEP_ID],
            source_step_id=words[lane_words.SOURCE_STEP_ID],
            epoch=words[lane_words.EPOCH],
            budget=words[lane_words.BUDGET],
            max_verify_len=words[lane_words.MAX_VERIFY_LEN],
            next_draft_tokens=words[lane_words.NEXT_DRAFT_TOKENS],
            expected_tokens=float(self._floats[lane_words.EXPECTED_TOKENS_BITS]),
            expected_ms=float(self._floats[lane_words.EXPECTED_MS_BITS]),
            policy_id=words[lane_words.POLICY_ID],
            model_state=words[lane_words.MODEL_STATE],
            flags=words[lane_words.FLAGS],
            num_repaired_confidences=words[lane_words.NUM_REPAIRED],
            decided_ns=words[lane_words.DECIDED_NS],
            fairness=float(self._floats[lane_words.FAIRNESS_BITS]),
        )
