"""The far end of a lane whose scheduler is behind a stream.

The engine publishes to shared memory and reads a lane, whoever is attached. For a scheduler that
cannot map them, `InlineLane` maps them in its place, in this process: it turns the newest plan
request into a message and writes the decisions that come by message into the lane. So nothing of
it is paid, or waited for, on the engine's thread, and what is read is checked as ever.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.inline import MAX_REPORTS, pack_report, pack_request, unpack_decision
from specsched_protocol.shm import (
    ExecutorRegion,
    LaneRegion,
    lane,
    open_executor_region,
    open_lane_region,
    report_ring,
)
from specsched_protocol.shm import plan_arrays as plan
from specsched_protocol.shm.layout import DECISION_WORDS
from specsched_protocol.shm.plan_area import latest_publication, read_confidences, read_request
from specsched_protocol.shm.seqlock import EMPTY, OK, TORN
from specsched_protocol.v1 import scheduler_pb2 as pb

__all__ = ["InlineLane"]

_MAX_TRIES = 64


# Compiled code keeps the GIL here, as on the engine's side: it takes microseconds, and to get the
# GIL back from a busy engine takes milliseconds.


@njit(cache=True)
def _read_newest(words: Any, layout: Any, seen: int, request: Any, gathered: Any) -> Any:
    """Copy the newest plan request and its confidences; its publication, or 0 if it is `seen`."""
    for _ in range(_MAX_TRIES):
        publication = latest_publication(words, layout)
        if publication <= 0 or publication == seen:
            return 0
        if read_request(words, layout, publication, 1, request) != OK:
            continue  # torn or overwritten: there is a newer one, or soon will be
        status = EMPTY
        if request.fixed[plan.CONFIDENCE_INDEX] > 0:
            status = read_confidences(words, layout, request, 1, gathered)
        if status == TORN:
            continue
        if status == EMPTY:
            gathered.num_valid[:] = 0
        return publication
    return 0


@njit(cache=True)
def _latest_report(words: Any, layout: Any) -> Any:
    return report_ring.latest_report(words, layout)


@njit(cache=True)
def _read_report(words: Any, layout: Any, index: int, report: Any) -> Any:
    return report_ring.read_report(words, layout, index, _MAX_TRIES, report)


@njit(cache=True)
def _write_decision(words: Any, index: int, decision: Any) -> None:
    lane.write_decision(words, index, decision)
    lane.beat(words, decision[lane.DECIDED_NS])


class InlineLane:
    """One lane's far end. `take` belongs to one thread, `deliver` to one; never blocks.

    A mailbox of one element: while the stream takes nothing, newer plan requests replace older
    ones. num_refused_decisions: messages with a number that no lane can hold.
    """

    def __init__(
        self, executor: ExecutorRegion, lane_region: LaneRegion, doorbell: OwnedDescriptor
    ) -> None:
        layout = executor.layout
        # Mapped as a scheduler would: the region read-only, the lane for writing.
        self._executor = open_executor_region(
            executor.fd, layout.max_requests, layout.max_draft_tokens, executor.boot_id
        )
        self._lane = open_lane_region(
            lane_region.fd, lane_region.boot_id, lane_region.lane, lane_region.epoch
        )
        self._doorbell = doorbell
        self._request = plan.new_request_arrays(layout)
        self._gathered = plan.new_gathered_confidences(layout)
        self._report = report_ring.new_report_arrays(layout)
        self._decision = np.zeros(DECISION_WORDS, dtype=np.int64)
        self._last_publication = 0
        self._last_report = int(_latest_report(self._executor.words, layout))
        self._num_decisions = 0
        self.num_refused_decisions = 0

    def warm_up(self) -> None:
        """Load what is compiled, on regions that nobody has seen yet."""
        self._last_report = -1
        self.take()
        self.deliver(pb.InlineDecision())

    def fileno(self) -> int:
        """The doorbell: readable once the engine has published; whoever polls it drains it."""
        return self._doorbell.fileno()

    def take(self) -> pb.InlineSteps | None:
        """What the scheduler has not been told yet; None if that is nothing."""
        request, reports = self._take_request(), self._take_reports()
        if request is None and not reports:
            return None
        return pb.InlineSteps(plan_request=request, reports=reports)

    def deliver(self, message: pb.InlineDecision) -> None:
        """Put a decision where the engine looks; it judges it as it does any other."""
        if not unpack_decision(message, time.monotonic_ns(), self._decision):
            self.num_refused_decisions += 1
            return
        _write_decision(self._lane.words, self._num_decisions, self._decision)
        self._num_decisions += 1

    def _take_request(self) -> pb.InlinePlanRequest | None:
        region = self._executor
        publication = _read_newest(
            region.words, region.layout, self._last_publication, self._request, self._gathered
        )
        if publication == 0:
            return None
        self._last_publication = int(publication)
        return pack_request(self._request, self._gathered)

    def _take_reports(self) -> list[pb.InlineReport]:
        region = self._executor
        newest = int(_latest_report(region.words, region.layout))
        oldest_left = newest - region.layout.num_report_slots + 1
        first = max(self._last_report + 1, oldest_left)
        last = min(newest, first + MAX_REPORTS - 1)
        self._last_report = max(last, self._last_report)
        return [
            pack_report(self._report)
            for index in range(first, last + 1)
            if _read_report(region.words, region.layout, index, self._report) == OK
        ]
