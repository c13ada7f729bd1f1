"""Plans through shared memory: the executor's end.

Engine side: `publish`, `read` and `report`, for one thread, never blocking. Control side: lanes,
for any thread. They meet in one immutable view of the lanes, swapped as a whole.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.handoff import HandoffServer
from specsched_protocol.plan import (
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import (
    BOOT_ID_BYTES,
    RegionShape,
    create_executor_region,
    create_lane_region,
)
from specsched_protocol.shm.plan_arrays import (
    new_confidence_arrays,
    new_request_arrays,
)
from specsched_protocol.shm.report_ring import new_report_arrays
from specsched_protocol.v1 import plan_pb2

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.transport.base import PlanTransport
from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lane_reader import AskedStep, LaneReader
from specsched_executor.transport.lanes import Lane, LaneOffer, LaneSwitch, LaneTable, LaneView
from specsched_executor.transport.shadows import ShadowReader
from specsched_executor.transport.staging import (
    publish_report,
    publish_step,
    stage_report,
    stage_request,
    stage_rows,
)

__all__ = ["SharedMemoryTransport", "TransportCounters"]

_MAX_ASKED_STEPS = 8
"""Requests remembered for their decisions; more are never outstanding."""
_MAX_PRICED_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class TransportCounters:
    """Totals since the start.

    num_refused_requests: plan requests with more rows, or values, than the region has room for;
    such a step has no plan. num_dropped_reports: the same of reports.
    """

    num_requests: int
    num_plans_on_time: int
    num_fallbacks: Mapping[FallbackReason, int]
    num_refused_requests: int
    num_reports: int
    num_dropped_reports: int


class SharedMemoryTransport:
    """A PlanTransport over sealed memory files, and the LaneHost of the control plane.

    Creates the executor's region and serves the hand-over socket below `run_dir`. All compiled
    code is loaded on construction. Raises RunDirError if the socket cannot be placed there.
    """

    def __init__(self, run_dir: RunDir, shape: RegionShape, boot_id: bytes | None = None) -> None:
        self.boot_id = os.urandom(BOOT_ID_BYTES) if boot_id is None else boot_id
        self._region = create_executor_region(shape, self.boot_id)
        self._rows = new_confidence_arrays(self._region.layout)
        self._request = new_request_arrays(self._region.layout)
        self._report = new_report_arrays(self._region.layout)
        self._reader = LaneReader(shape.max_draft_tokens)
        self._shadows = ShadowReader(self._reader, _MAX_PRICED_ROWS)
        self._asked: dict[int, AskedStep] = {}
        self._peeker = LaneReader(shape.max_draft_tokens)  # of the control side's thread
        self._newest: AskedStep | None = None
        self.embedded: PlanTransport | None = None  # decides here where no scheduler does
        self._last_read_step_id = 0
        self._fallbacks: Counter[FallbackReason] = Counter()
        self._num_plans = 0
        self._num_refused = 0
        self._num_dropped_reports = 0
        self._warm_up()
        run_dir.remove_stale_executors()
        self._handoff = HandoffServer(run_dir.handoff_socket(self.boot_id))
        self._lanes = LaneTable(self._region, self._handoff)
        self._is_closed = False
        self.initial_calibration: ConfidenceCalibration | None = None

    # ===================== Engine =====================

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        """Publish to all lanes and ring their doorbells; a request that does not fit is counted."""
        view = self._lanes.view
        self._look_at_shadows(view, self._asked.get(self._last_read_step_id))
        is_published = (
            stage_rows(rows, self._rows)
            and stage_request(request, self._request)
            and self._publish(view.doorbells)
        )
        if not is_published:
            self._num_refused += 1
            return
        self._newest = AskedStep(request, rows, view.ready)
        self._asked[request.step_id] = self._newest
        if len(self._asked) > _MAX_ASKED_STEPS:
            del self._asked[next(iter(self._asked))]

    def read(self, step_id: int) -> StepDecision | FallbackReason:
        """The active lane's decision for `step_id`, or why there is none to follow; counted."""
        outcome = self._reader.read(self._lanes.view, step_id, self._asked.get(step_id))
        if isinstance(outcome, FallbackReason):
            self._fallbacks[outcome] += 1
        else:
            self._num_plans += 1
        self._last_read_step_id = step_id
        return outcome

    def await_decision(self, step_id: int, until_ns: int) -> None:
        """See PatientTransport; of the lane that is followed."""
        asked, followed = self._asked.get(step_id), self._lanes.view.followed
        if asked is not None and followed is not None and followed in asked.lanes:
            self._reader.await_decision(followed, step_id, until_ns)

    def stand_in(self, step_id: int) -> StepDecision | None:
        """The embedded decision for a step without a plan: made now, from what was published."""
        asked = self._asked.get(step_id)
        if self.embedded is None or asked is None:
            return None
        self.embedded.publish(asked.rows, asked.request)
        decision = self.embedded.read(step_id)
        return decision if isinstance(decision, StepDecision) else None

    def report(self, report: StepReport) -> None:
        """Put `report` on the ring, where it stays until as many others followed as fit."""
        is_published = stage_report(report, self._report) and publish_report(
            self._region.words, self._region.layout, self._report
        )
        self._num_dropped_reports += not is_published
        if self.embedded is not None:
            self.embedded.report(report)
        asked = self._asked.get(report.step_id)
        self._look_at_shadows(self._lanes.view, asked)
        if asked is not None:
            self._shadows.observe(asked, self._asked.get(report.step_id + 1), report)

    def calibration(self) -> ConfidenceCalibration | None:
        """What the scheduler that is followed wants drafts ranked by; `initial_calibration` while
        there is none, or before it has said."""
        lane = self._lanes.view.followed
        if lane is None or not lane.ranking.is_told:
            return self.initial_calibration
        return lane.ranking.calibration

    def close(self) -> None:
        """Close all lanes and the hand-over socket."""
        if self._is_closed:
            return
        self._is_closed = True
        self._lanes.close()
        self._handoff.close()
        with suppress(FileNotFoundError):  # somebody may have removed the run directory
            self._handoff.path.parent.rmdir()

    def counters(self) -> TransportCounters:
        """A snapshot; any thread."""
        return TransportCounters(
            num_requests=int(self._request.fixed[0]),
            num_plans_on_time=self._num_plans,
            num_fallbacks={reason: self._fallbacks[reason] for reason in FallbackReason},
            num_refused_requests=self._num_refused,
            num_reports=int(self._report.fixed[0]),
            num_dropped_reports=self._num_dropped_reports,
        )

    # ===================== Control =====================

    def open_lane(self, *, share_memory: bool = True) -> LaneOffer:
        """See LaneTable.open_lane."""
        return self._lanes.open_lane(share_memory=share_memory)

    def run_inline(self, lane: int) -> InlineLane:
        """See LaneTable.run_inline."""
        return self._lanes.run_inline(lane)

    def lane_ready(self, lane: int) -> None:
        """See LaneTable.lane_ready."""
        self._lanes.lane_ready(lane)

    def close_lane(self, lane: int) -> None:
        """See LaneTable.close_lane."""
        self._lanes.close_lane(lane)

    def activate(self, lane: int | None) -> None:
        """See LaneTable.activate."""
        self._lanes.activate(lane)

    def begin_switch(self, lane: int, *, yields: bool = False) -> LaneSwitch:
        """See LaneTable.begin_switch."""
        return self._lanes.begin_switch(lane, yields=yields)

    def lane(self, lane: int) -> Lane:
        """See LaneTable.lane."""
        return self._lanes.lane(lane)

    def heartbeat_ns(self, lane: int) -> int:
        """When the planner of `lane` was last alive (CLOCK_MONOTONIC), 0 if never."""
        return self._lanes.heartbeat_ns(lane)

    def has_plan(self, lane: int) -> bool:
        """Whether `lane` has a plan for the step asked about last; one thread, not the engine's."""
        newest = self._newest
        if newest is None:
            return True
        outcome = self._peeker.judged(self._lanes.lane(lane), newest.request.step_id, newest)
        return isinstance(outcome, StepDecision)

    def last_read_step_id(self) -> int:
        """The step whose plan was read last."""
        return self._last_read_step_id

    def set_cost(self, cost: plan_pb2.CostModel) -> None:
        """Price the steps that are compared by this profile."""
        self._shadows.set_cost(cost)

    def compare_shadows(self) -> int:
        """Compare the shadows' decisions that wait for it; one thread, not the engine's."""
        return self._shadows.compare()

    # ===================== Inside =====================

    def _look_at_shadows(self, view: LaneView, asked: AskedStep | None) -> None:
        num_shadows = len(view.ready) - (view.followed is not None)
        if num_shadows and asked is not None:
            self._shadows.look(view, asked)

    def _publish(self, doorbells: npt.NDArray[np.int64]) -> bool:
        region = self._region
        return bool(publish_step(region.words, region.layout, self._rows, self._request, doorbells))

    def _warm_up(self) -> None:
        """Run each compiled function once, on memory that nobody has seen yet."""
        region = self._region
        self._request.fixed[:] = -1
        self._report.fixed[:] = -1
        self._publish(np.zeros(0, dtype=np.int64))
        publish_report(region.words, region.layout, self._report)
        unused_lane = create_lane_region(self.boot_id, lane=0, epoch=0)
        doorbell = OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        inline = InlineLane(region, unused_lane, doorbell)
        inline.warm_up()
        self._reader.warm_up(Lane(unused_lane, doorbell, nonce=None))
        self._request.fixed[:] = 0
        self._report.fixed[:] = 0
