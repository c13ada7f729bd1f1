"""The planner answers while another thread of its process holds the GIL."""

from __future__ import annotations

import threading

import numpy as np
from numba import njit
from specsched_executor.transport.staging import publish_step, stage_request, stage_rows
from specsched_protocol.shm import lane
from specsched_protocol.shm.layout import DECISION_WORDS
from specsched_protocol.shm.seqlock import OK
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner import PlannedStep, PolicySelection

from tests.protos.builders import make_request, make_rows
from tests.scheduler_service.planner.rig import Rig, wait_until

MANY_TRIES = 30_000_000  # seconds: far longer than an answer takes on the busiest machine


@njit  # keeps the GIL from the first line to the last
def publish_and_await(words, layout, rows, request, doorbells, lane_words, step_id, max_tries):
    """Whether the decision for `step_id` came while this thread held the GIL."""
    decision = np.zeros(DECISION_WORDS, dtype=np.int64)
    publish_step(words, layout, rows, request, doorbells)
    for _ in range(max_tries):  # noqa: SIM110 - compiled as written
        if lane.read_decision(lane_words, step_id, 1, decision) == OK:
            return True
    return False


def is_answered_under_the_gil(rig: Rig, step_id: int, max_tries: int) -> bool:
    transport = rig.transport
    assert stage_rows(make_rows(step_id - 2), transport._rows)
    assert stage_request(make_request(step_id), transport._request)
    view = transport._lanes.view
    assert view.active is not None
    return publish_and_await(
        transport._region.words,
        transport._region.layout,
        transport._rows,
        transport._request,
        view.doorbells,
        view.active.region.words,
        step_id,
        max_tries,
    )


def test_compiled_policies_need_no_gil(rig: Rig):
    planner = rig.attach()
    is_answered_under_the_gil(rig, 2, 1)  # compiles
    wait_until(lambda: planner.counters().num_decisions == 1)
    assert is_answered_under_the_gil(rig, 3, MANY_TRIES)


def test_the_same_wait_is_in_vain_for_a_policy_in_python(rig: Rig):
    """So the test above does hold the GIL."""
    is_called = threading.Event()

    def decide(step: PlannedStep) -> StepPlan:
        is_called.set()
        return StepPlan(0, 0, 1, 0, 0, 0, 0.0, 0.0)

    rig.attach(PolicySelection(0, PolicyCode.PYTHON, decide=decide))
    is_answered_under_the_gil(rig, 2, 1)
    assert is_called.wait(60)
    assert not is_answered_under_the_gil(rig, 3, MANY_TRIES // 30)
