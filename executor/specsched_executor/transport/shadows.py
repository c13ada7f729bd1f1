"""Shadows: schedulers whose decisions are read and compared, but not followed.

The engine's thread reads their decisions for a step once the step is on its way, a few microseconds
each, before it asks for the next one: a lane keeps two decisions, and where steps overlap, two more
are asked for until the outcome is there. Then it puts them aside, and another thread compares them.
A comparison that comes too fast is skipped and counted, so that neither memory nor the engine's
time depends on how long it takes.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from specsched_protocol.plan import FallbackReason, StepDecision, StepReport
from specsched_protocol.v1 import plan_pb2

from specsched_executor.transport import comparison
from specsched_executor.transport.comparison import ComparedStep
from specsched_executor.transport.lane_reader import AskedStep, LaneReader
from specsched_executor.transport.lanes import Lane, LaneView
from specsched_executor.transport.step_prices import verify_ms_by_rows

__all__ = ["ShadowReader"]

_MAX_WAITING = 1
"""A comparison takes interpreter time, which the engine needs too: two in a row delay a step."""


class ShadowReader:
    """`look` and `observe` belong to the engine's thread, `compare` to one other."""

    def __init__(self, reader: LaneReader, max_rows: int) -> None:
        self._reader = reader
        self._max_rows = max_rows
        self._verify_ms = np.zeros(max_rows + 1)
        self._waiting: deque[ComparedStep] = deque()
        comparison.warm_up()

    def set_cost(self, cost: plan_pb2.CostModel) -> None:
        """Price the steps compared from now on by this profile."""
        self._verify_ms = verify_ms_by_rows(cost, self._max_rows)

    def look(self, view: LaneView, asked: AskedStep) -> None:
        """Read what the shadows decided for the step `asked`, whose plan was read; once."""
        if asked.shadows is not None:
            return
        shadows = [each for each in asked.lanes if each is not asked.lane and each in view.ready]
        asked.shadows = tuple((lane, d) for lane in shadows if (d := self._read(lane, asked)))

    def observe(self, asked: AskedStep, following: AskedStep | None, report: StepReport) -> None:
        """Put what the shadows decided for the finished step `asked` aside.

        following: the step after it, whose request brought the confidences of its drafts.
        """
        if asked.decision is None or not asked.shadows:
            return
        decided = tuple((lane.tally, decision) for lane, decision in asked.shadows)
        if len(self._waiting) >= _MAX_WAITING:
            for tally, _ in decided:
                tally.num_skipped += 1
            return
        self._waiting.append(
            ComparedStep(
                active=asked.decision,
                shadows=decided,
                rows=following.rows if following else None,
                weights=following.request if following else None,
                report=report,
            )
        )

    def compare(self) -> int:
        """Compare what waits; returns how many steps that were."""
        num_compared = 0
        while self._waiting:
            self._waiting.popleft().tally(self._verify_ms)
            num_compared += 1
        return num_compared

    def _read(self, lane: Lane, asked: AskedStep) -> StepDecision | None:
        outcome = self._reader.judged(lane, asked.request.step_id, asked)
        if isinstance(outcome, StepDecision) and outcome.decided_ns > asked.read_ns:
            outcome = FallbackReason.LATE  # here by now, but not when it would have been needed
        if isinstance(outcome, StepDecision):
            lane.health.sound()
            return outcome
        lane.health.fault(outcome, asked.read_ns)
        return None
