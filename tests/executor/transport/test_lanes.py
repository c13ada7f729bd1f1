"""Switching between two steps, reading shadows, standing in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from specsched_executor.transport.in_process import InProcessTransport
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import FallbackReason, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2

from tests.executor.transport.test_shared_memory import MAX_REQUESTS, K, attach
from tests.protos.builders import make_report, make_request, make_rows

COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[1.0 + n / 8]) for n in (1, 8, 64)], capture_limit=64
)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SharedMemoryTransport]:
    shape = RegionShape(MAX_REQUESTS, K, num_report_slots=4)
    transport = SharedMemoryTransport(RunDir.open(tmp_path / "run"), shape)
    transport.set_cost(COST)
    yield transport
    transport.close()


def test_switch_waits_for_a_plan_and_costs_no_step_its_own(transport: SharedMemoryTransport):
    old, new = attach(transport), attach(transport, activate=False)
    switch = transport.begin_switch(1)
    transport.publish(None, make_request(7))
    decision = old.decide(7)
    assert transport.read(7) == decision
    assert switch.step_id is None

    transport.publish(None, make_request(8))
    old.decide(8, budget=1)
    expected = new.decide(8, budget=2)
    assert transport.read(8) == expected
    assert switch.step_id == 8
    # The old one counts no more, even before the switch is completed.
    transport.publish(None, make_request(9))
    old.decide(9)
    assert transport.read(9) is FallbackReason.LATE
    transport.activate(1)
    transport.publish(None, make_request(10))
    expected = new.decide(10)
    assert transport.read(10) == expected


def test_garbage_of_the_target_does_not_complete_a_switch(transport: SharedMemoryTransport):
    old, new = attach(transport), attach(transport, activate=False)
    switch = transport.begin_switch(1)
    for step, changes in enumerate(({"budget": 1 << 20}, {"epoch": 1}, {"source_step_id": 0}), 7):
        transport.publish(None, make_request(step))
        expected = old.decide(step)
        new.decide(step, **changes)
        assert transport.read(step) == expected
    assert switch.step_id is None
    assert transport.lane(0).health.num_sound == 3


def test_switch_that_yields_is_made_where_the_active_lane_has_no_plan(
    transport: SharedMemoryTransport,
):
    old, new = attach(transport), attach(transport, activate=False)
    switch = transport.begin_switch(1, yields=True)
    transport.publish(None, make_request(7))
    expected = old.decide(7)
    new.decide(7)
    assert transport.read(7) == expected
    assert switch.step_id is None
    transport.publish(None, make_request(8))
    expected = new.decide(8)
    assert transport.read(8) == expected
    assert switch.step_id == 8


def test_shadow_is_judged_while_nobody_is_followed(transport: SharedMemoryTransport):
    shadow = attach(transport, activate=False)
    for step in (7, 8):
        transport.publish(None, make_request(step))
        if step == 8:
            shadow.decide(step)
        assert transport.read(step) is FallbackReason.NO_SCHEDULER
        transport.report(make_report(step))
    health = transport.lane(0).health
    assert (health.num_sound, health.num_faults) == (1, {FallbackReason.LATE: 1})


def test_closing_the_target_takes_a_switch_back(transport: SharedMemoryTransport):
    old = attach(transport)
    attach(transport, activate=False)
    transport.begin_switch(1)
    transport.close_lane(1)
    transport.publish(None, make_request(7))
    expected = old.decide(7)
    assert transport.read(7) == expected


def test_shadow_is_compared_under_the_outcome(transport: SharedMemoryTransport):
    active, shadow = attach(transport), attach(transport, activate=False)
    transport.publish(make_rows(5), make_request(7))
    active.decide(7, budget=4)
    shadow.decide(7, budget=1, expected_tokens=3.0)
    transport.read(7)
    transport.publish(make_rows(6), make_request(8))  # brings the confidences that 7 verifies
    transport.report(make_report(7))
    assert transport.compare_shadows() == 1
    tally = transport.lane(1).tally
    assert (tally.num_steps, tally.num_same, tally.budget_difference) == (1, 0, -3)
    assert (tally.expected_tokens, tally.active_expected_tokens) == (3.0, 7.5)
    assert tally.regret >= 0
    assert transport.lane(0).tally.num_steps == 0


def test_shadow_that_decides_after_the_step_was_read_is_late(transport: SharedMemoryTransport):
    active, shadow = attach(transport), attach(transport, activate=False)
    transport.publish(None, make_request(7))
    active.decide(7)
    transport.read(7)
    shadow.decide(7, decided_ns=time.monotonic_ns())
    transport.report(make_report(7))
    assert transport.compare_shadows() == 0
    assert transport.lane(1).health.num_faults == {FallbackReason.LATE: 1}


def test_shadow_is_compared_where_steps_overlap(transport: SharedMemoryTransport):
    """Step 7 is reported once 9 was asked about; a lane keeps the decisions for 8 and 9."""
    active, shadow = attach(transport), attach(transport, activate=False)
    transport.publish(None, make_request(7))
    for step in (7, 8):
        active.decide(step)
        shadow.decide(step)
        transport.read(step)
        transport.publish(None, make_request(step + 1))
    shadow.decide(9)
    transport.report(make_report(7))
    assert transport.compare_shadows() == 1
    assert transport.lane(1).health.num_sound == 2
    assert transport.lane(1).health.num_faults == {}


def test_comparisons_never_pile_up(transport: SharedMemoryTransport):
    active, shadow = attach(transport), attach(transport, activate=False)
    for step in range(7, 27):
        transport.publish(None, make_request(step))
        active.decide(step)
        shadow.decide(step)
        transport.read(step)
        transport.report(make_report(step))
    num_compared = transport.compare_shadows()
    tally = transport.lane(1).tally
    assert 0 < num_compared < 5
    assert num_compared + tally.num_skipped == 20
    assert transport.lane(1).health.num_sound == 20


def test_runs_of_faults_are_kept_by_lane(transport: SharedMemoryTransport):
    active = attach(transport)
    for step in range(7, 12):
        transport.publish(None, make_request(step))
        active.decide(step, expected_tokens=float("nan"))
        assert transport.read(step) is FallbackReason.IMPOSSIBLE
    health = transport.lane(0).health
    assert (health.fault_run, health.garbage_run, health.sound_run) == (5, 5, 0)
    transport.publish(None, make_request(12))
    active.decide(12)
    transport.read(12)
    assert (health.fault_run, health.garbage_run, health.sound_run) == (0, 0, 1)


def test_one_that_was_not_asked_is_not_at_fault(transport: SharedMemoryTransport):
    transport.publish(None, make_request(7))
    attach(transport)
    assert transport.read(7) is FallbackReason.LATE
    assert transport.lane(0).health.fault_run == 0


def test_embedded_decision_stands_in_for_a_missing_one(transport: SharedMemoryTransport):
    request = make_request(7)
    transport.publish(make_rows(5), request)
    assert transport.stand_in(7) is None
    transport.embedded = InProcessTransport(
        "throughput", COST, max_requests=MAX_REQUESTS, max_draft_tokens=K
    )
    assert transport.read(7) is FallbackReason.NO_SCHEDULER
    decision = transport.stand_in(7)
    assert isinstance(decision, StepDecision)
    assert (decision.step_id, decision.source_step_id) == (7, request.source_step_id)
    assert 0 <= decision.budget <= int(np.sum(request.num_draft_tokens))
    assert transport.stand_in(8) is None  # nobody asked about it
