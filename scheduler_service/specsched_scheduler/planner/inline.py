"""Steps that come by message, put where a planner reads them.

The executor's region and the lane exist here too, in memory of this process alone: `InlineFeed`
writes the region as an executor would, and the planner runs the very code that it runs on shared
memory, with its checks and its counters.
"""

from __future__ import annotations

import os
import time
from typing import Any

from specsched_protocol.compiling import njit
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.inline import unpack_report, unpack_request
from specsched_protocol.shm import (
    RegionShape,
    create_executor_region,
    create_lane_region,
    open_executor_region,
    open_lane_region,
)
from specsched_protocol.shm import plan_arrays as plan
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.plan_area import (
    are_valid_confidences,
    is_valid_request,
    publish_request,
    write_confidences,
)
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.planner.regions import SchedulerRegions

__all__ = ["InlineFeed"]


@njit(cache=True)
def _publish_step(words: Any, layout: Any, rows: Any, request: Any) -> Any:
    """Publish both under the request's own number; False, and nothing, if a value is wrong."""
    if not (are_valid_confidences(layout, rows) and is_valid_request(layout, request)):
        return False
    rows.fixed[plan.ROWS_INDEX] += 1
    write_confidences(words, layout, rows)
    request.fixed[plan.CONFIDENCE_INDEX] = rows.fixed[plan.ROWS_INDEX]
    publish_request(words, layout, request)
    return True


@njit(cache=True)
def _publish_report(words: Any, layout: Any, report: Any) -> Any:
    if not ring.is_valid_report(layout, report):
        return False
    report.fixed[ring.INDEX] += 1
    ring.write_report(words, layout, report)
    return True


class InlineFeed:
    """One executor's steps for one planner. `accept` belongs to one thread.

    regions: for the Planner; its `decided` is rung after each decision. num_invalid_requests,
    num_invalid_reports: messages dropped because a size, count or index in them was wrong.
    """

    def __init__(self, hello: pb.Hello) -> None:
        shape = RegionShape(hello.model.max_requests, hello.model.max_draft_tokens)
        region = create_executor_region(shape, hello.boot_id)
        lane = create_lane_region(hello.boot_id, hello.lane, hello.epoch)
        self.regions = SchedulerRegions(
            executor=open_executor_region(
                region.fd, shape.max_requests, shape.max_draft_tokens, hello.boot_id
            ),
            lane=open_lane_region(lane.fd, hello.boot_id, hello.lane, hello.epoch),
            doorbell=_eventfd(),
            decided=_eventfd(),
        )
        self.num_invalid_requests = 0
        self.num_invalid_reports = 0
        self._region = region
        self._rows = plan.new_confidence_arrays(region.layout)
        self._request = plan.new_request_arrays(region.layout)
        self._report = ring.new_report_arrays(region.layout)
        self._last_publication = 0

    def accept(self, steps: pb.InlineSteps) -> None:
        """Pass on what is sound in `steps`, count what is not; wakes the planner, never waits."""
        for report in steps.reports:
            self.num_invalid_reports += not self._accept_report(report)
        if steps.HasField("plan_request"):
            self.num_invalid_requests += not self._accept_request(steps.plan_request)

    def _accept_request(self, message: pb.InlinePlanRequest) -> bool:
        request = self._request
        if not unpack_request(message, self._rows, request):
            return False
        publication = int(request.fixed[plan.PUBLICATION])
        if publication <= self._last_publication:
            return False
        request.fixed[plan.PUBLISHED_NS] = time.monotonic_ns()
        region = self._region
        if not _publish_step(region.words, region.layout, self._rows, request):
            return False
        self._last_publication = publication
        os.eventfd_write(self.regions.doorbell.fileno(), 1)
        return True

    def _accept_report(self, message: pb.InlineReport) -> bool:
        region = self._region
        return unpack_report(message, self._report) and bool(
            _publish_report(region.words, region.layout, self._report)
        )


def _eventfd() -> OwnedDescriptor:
    return OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
