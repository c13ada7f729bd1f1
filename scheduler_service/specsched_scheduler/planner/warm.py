"""Compiling everything a planner runs, before anybody relies on it."""

from __future__ import annotations

import os
import time

from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm import (
    RegionShape,
    create_executor_region,
    create_lane_region,
    open_executor_region,
    open_lane_region,
    plan_arrays,
    report_ring,
)
from specsched_protocol.shm.plan_area import publish_request

from specsched_scheduler.decision.codes import ModelState, PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner.planner import Planner
from specsched_scheduler.planner.records import PlannedStep, PolicySelection
from specsched_scheduler.planner.regions import SchedulerRegions

__all__ = ["WarmUpError", "warm_up"]

_SHAPE = RegionShape(max_requests=2, max_draft_tokens=2, num_report_slots=2)
_COST_MODEL = CostModel(verify={1: [1.0], 2: [1.5], 4: [2.0]}, capture_limit=4)
_TIMEOUT_S = 300.0
_POLL_S = 0.005


class WarmUpError(RuntimeError):
    """The planner did not answer its own request: it cannot serve."""


def warm_up() -> None:
    """Plan one step by the compiled policies and one by a policy in Python, on private memory.

    Takes seconds where nothing is cached. Raises WarmUpError if the planner does not answer.
    """
    compiled = PolicySelection(policy_id=0, code=PolicyCode.THROUGHPUT)
    in_python = PolicySelection(policy_id=0, code=PolicyCode.PYTHON, decide=_verify_nothing)
    for policy in (compiled, in_python):
        _plan_once(policy)


def _plan_once(policy: PolicySelection) -> None:
    boot_id = os.urandom(16)
    executor = create_executor_region(_SHAPE, boot_id)
    lane = create_lane_region(boot_id, lane=0, epoch=1)
    # Mapped as a scheduler maps them: numba compiles apart for read-only arrays.
    regions = SchedulerRegions(
        executor=open_executor_region(
            executor.fd, _SHAPE.max_requests, _SHAPE.max_draft_tokens, boot_id
        ),
        lane=open_lane_region(lane.fd, boot_id, lane=0, epoch=1),
        doorbell=OwnedDescriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)),
    )
    publish_request(executor.words, executor.layout, _request(regions))
    planner = Planner(regions, policy, _COST_MODEL)
    report = report_ring.new_report_arrays(executor.layout)
    report.fixed[report_ring.INDEX] = 1
    report_ring.write_report(executor.words, executor.layout, report)
    planner.start()
    try:
        _await_decision(planner)
        planner.drain_reports()
    finally:
        planner.stop()


def _await_decision(planner: Planner) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not planner.recent_decisions():
        if not planner.is_running or time.monotonic() > deadline:
            raise WarmUpError(f"the planner did not answer: {planner.counters()}")
        time.sleep(_POLL_S)


def _request(regions: SchedulerRegions) -> plan_arrays.RequestArrays:
    request = plan_arrays.new_request_arrays(regions.executor.layout)
    request.fixed[plan_arrays.PUBLICATION] = 1
    request.fixed[plan_arrays.STEP_ID] = 2
    request.fixed[plan_arrays.NUM_OTHER_TOKENS] = 1
    request.fixed[plan_arrays.MAX_BUDGET] = NO_BUDGET_CAP
    request.fixed[plan_arrays.NUM_REQUESTS] = 1
    request.num_draft_tokens[0] = 2
    request.samples[0] = True
    request.weight[0] = 1.0
    return request


def _verify_nothing(_step: PlannedStep) -> StepPlan:
    return StepPlan(0, NO_BUDGET_CAP, ModelState.OK, 0, 0, 0, 0.0, 0.0)
