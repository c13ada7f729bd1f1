"""The planner answers through shared memory what the decision says, whatever it is sent."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason
from specsched_protocol.shm import ABI_VERSION, RegionError, plan_arrays
from specsched_protocol.shm.plan_arrays import NUM_REQUESTS
from specsched_scheduler.decision.calibration import identity_table
from specsched_scheduler.decision.codes import DecisionFlags, Feature, ModelState, PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.draft_length import NUM_LOADS, DraftLengthPlan, pack_plan
from specsched_scheduler.decision.finished import reports_of
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner import (
    Lesson,
    PlannedStep,
    PlannerConfig,
    PolicyFailure,
    PolicySelection,
    attach_regions,
    warm_up,
)

from tests.protos.builders import make_report, make_request, make_rows
from tests.scheduler_service.planner.rig import (
    FLAT,
    OFF,
    STEEP,
    THROUGHPUT,
    TIMEOUT_S,
    K,
    Rig,
    wait_until,
)


def test_flat_cost_verifies_all_and_steep_cost_nothing(rig: Rig):
    planner = rig.attach(THROUGHPUT, FLAT)
    decision = rig.plan(make_request(7), make_rows(5))
    assert decision.budget == 12
    assert decision.max_verify_len == NO_BUDGET_CAP
    assert decision.next_draft_tokens == K
    assert decision.policy_id == 1
    assert decision.model_state == ModelState.OK
    assert decision.expected_tokens == pytest.approx(3 * (1 + 0.9 + 0.81 + 0.729 + 0.6561), 1e-5)
    planner.set_cost_model(STEEP)
    assert rig.plan(make_request(8), make_rows(6)).budget == 0


def test_the_budget_follows_the_confidences(rig: Rig):
    rig.attach(PolicySelection(5, PolicyCode.THRESHOLD, parameter=0.5))
    confidence = np.full((3, K), 0.1, dtype=np.float32)
    confidence[1] = (0.9, 0.9, 0.9, 0.1)
    decision = rig.plan(make_request(7), replace(make_rows(5), confidence=confidence))
    assert decision.budget == 3


def test_drafts_are_as_long_as_is_planned_for_their_batch_size(rig: Rig):
    """From the first step of another size on: nothing has to be learned before."""
    planner = rig.attach(THROUGHPUT, FLAT)
    lengths = {0: 3, 1: 2, 2: 0}
    words = np.full(NUM_LOADS, pack_plan(DraftLengthPlan(K, 0, K)))
    for load, length in lengths.items():
        words[load] = pack_plan(DraftLengthPlan(length, 0, length))
    planner.set_draft_plans(words)
    sizes = (1, 2, 4, 3, 1, 8)
    asked = [
        rig.plan(make_request(7 + step, num_rows=size)).next_draft_tokens
        for step, size in enumerate(sizes)
    ]
    assert asked == [3, 2, 0, 0, 3, K]


def test_a_policy_takes_effect_with_what_goes_with_it(rig: Rig):
    planner = rig.attach(THROUGHPUT, STEEP)
    assert rig.plan(make_request(7), make_rows(5)).budget == 0
    flat = FLAT.compile()
    as_flat = planner.table._replace(verify_ms=np.ones_like(planner.table.verify_ms))
    as_flat = as_flat._replace(verify_floor_ms=as_flat.verify_ms, verify_slope_ms=0.0)
    as_flat = as_flat._replace(stair_end=np.full_like(as_flat.stair_end, len(flat.verify_ms) - 1))
    planner.set_policy(THROUGHPUT, Lesson(identity_table(K), as_flat))
    assert rig.plan(make_request(8), make_rows(6)).budget == 12
    assert planner.table is as_flat


def test_a_policy_that_leaves_ranking_out_caps_all_requests_alike(rig: Rig):
    confidence = np.full((3, K), 0.1, dtype=np.float32)
    confidence[1] = 0.9
    rows = replace(make_rows(5), confidence=confidence)
    steps = CostModel({3: [10.0], 6: [10.5], 9: [14.0], 15: [20.0]}, 15)
    planner = rig.attach(THROUGHPUT, steps)
    ranked = rig.plan(make_request(7), rows)
    assert (ranked.budget, ranked.max_verify_len) == (3, NO_BUDGET_CAP)
    planner.set_policy(replace(THROUGHPUT, left_out=Feature.RANKING))
    capped = rig.plan(make_request(8), replace(rows, source_step_id=6))
    assert (capped.budget, capped.max_verify_len) == (3, 1)


def test_a_cap_per_request_never_exceeds_the_draft_positions(rig: Rig):
    planner = rig.attach(PolicySelection(1, PolicyCode.FIXED, parameter=2))
    assert rig.plan(make_request(7), make_rows(5)).max_verify_len == 2
    planner.set_policy(PolicySelection(2, PolicyCode.FIXED, parameter=99))
    decision = rig.plan(make_request(8), make_rows(6))
    assert (decision.max_verify_len, decision.budget) == (K, 12)


def test_a_decision_says_whether_rows_left_over_take_drafts(rig: Rig):
    planner = rig.attach()
    assert rig.plan(make_request(7), make_rows(5)).flags & DecisionFlags.FILL_SIZE
    planner.set_policy(PolicySelection(2, PolicyCode.FIXED, parameter=2))
    assert not rig.plan(make_request(8), make_rows(6)).flags & DecisionFlags.FILL_SIZE


def test_the_executors_cap_binds(rig: Rig):
    rig.attach()
    decision = rig.plan(make_request(7, max_budget=5), make_rows(5))
    assert decision.budget == 5
    assert decision.flags & DecisionFlags.CAPPED


def test_without_a_cost_model_all_is_verified_and_it_says_so(rig: Rig):
    rig.attach(cost_model=CostModel(verify={1: [1.0]}, capture_limit=1))
    decision = rig.plan(make_request(7), make_rows(5))
    assert (decision.budget, decision.model_state) == (12, ModelState.NO_MODEL)


def test_a_policy_change_takes_effect_while_the_planner_sleeps(rig: Rig):
    planner = rig.attach(config=PlannerConfig(spin_us=0, heartbeat_ms=10_000))
    assert rig.plan(make_request(7), make_rows(5)).budget == 12
    planner.set_policy(OFF)
    decision = rig.plan(make_request(8), make_rows(6))
    assert (decision.budget, decision.policy_id) == (0, OFF.policy_id)


def test_policy_changes_under_load_lose_no_request(rig: Rig):
    planner = rig.attach()
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            planner.set_policy(OFF)
            planner.set_policy(THROUGHPUT)

    flipper = threading.Thread(target=flip)
    flipper.start()
    try:
        budgets = {rig.plan(make_request(t), make_rows(t - 2)).budget for t in range(2, 300)}
    finally:
        stop.set()
        flipper.join()
    assert budgets <= {0, 12}
    assert planner.counters().num_decisions == 298
    assert planner.counters().num_missed_requests == 0


# ===================== Confidences that are not there or not possible =====================


def test_impossible_values_are_repaired_and_counted(rig: Rig):
    planner = rig.attach()
    confidence = np.full((3, K), 0.5, dtype=np.float32)
    confidence[0, 1], confidence[1, 2], confidence[2, 0] = np.nan, 1.5, -0.1
    decision = rig.plan(make_request(7), replace(make_rows(5), confidence=confidence))
    assert decision.num_repaired_confidences == 3
    assert decision.flags & DecisionFlags.REPAIRED
    assert planner.counters().num_repaired_confidences == 3


def test_positions_nobody_published_are_prior_not_repair(rig: Rig):
    planner = rig.attach()
    decision = rig.plan(make_request(7, num_draft_tokens=4), make_rows(5, num_draft_tokens=2))
    assert decision.num_repaired_confidences == 0
    assert decision.flags & DecisionFlags.PRIOR
    assert not decision.flags & DecisionFlags.REPAIRED
    assert planner.counters().num_repaired_confidences == 0


def test_reused_slots_use_the_prior(rig: Rig):
    rig.attach(PolicySelection(1, PolicyCode.THRESHOLD, parameter=0.6))
    rows = make_rows(5, confidence=0.99)
    assert rig.plan(make_request(7), rows).budget == 12
    rows = make_rows(6, confidence=0.1)
    # Had the newcomers been given the strangers' 0.1, none would reach 0.6.
    decision = rig.plan(make_request(8, generation=2), rows)
    assert decision.flags & DecisionFlags.PRIOR
    assert decision.budget > 0


def test_a_request_without_any_confidence_is_decided(rig: Rig):
    planner = rig.attach()
    decision = rig.plan(make_request(7))
    assert decision.flags & DecisionFlags.PRIOR
    assert planner.counters().num_missing_confidences == 1


def test_confidences_of_another_step_are_not_used(rig: Rig):
    planner = rig.attach()
    rig.plan(make_request(7, source_step_id=5), make_rows(4))
    assert planner.counters().num_missing_confidences == 1


# ===================== What a broken executor sends =====================


def test_invalid_requests_are_counted_and_the_next_is_answered(rig: Rig):
    planner = rig.attach()
    words, layout = rig.transport._region.words, rig.transport._region.layout
    for publication, value in enumerate((-1, 9, 1 << 60, 2), start=1):
        base = layout.request + (publication % 2) * layout.request_stride
        words[base] += 1
        words[base + 1 + plan_arrays.PUBLICATION] = publication
        words[base + 1 + plan_arrays.STEP_ID] = 7
        words[base + 1 + plan_arrays.SOURCE_STEP_ID] = 5
        words[base + 1 + NUM_REQUESTS] = value
        words[base + 1 + plan_arrays.CONFIDENCE_INDEX] = 0
        words[base] += 1
        words[layout.publication] = publication
        wait_until(lambda: sum(outcomes(planner)) == publication)  # noqa: B023
    assert outcomes(planner) == (1, 3)


def outcomes(planner) -> tuple[int, int]:
    counters = planner.counters()
    return counters.num_decisions, counters.num_invalid_requests


def test_overwritten_requests_are_counted_as_missed(rig: Rig):
    hello = rig.hello()
    regions = attach_regions(hello)
    from specsched_scheduler.planner import Planner

    planner = Planner(regions, THROUGHPUT, FLAT)
    rig.planners.append(planner)
    for step_id in range(5, 10):
        rig.transport.publish(None, make_request(step_id))
    planner.start()
    wait_until(lambda: planner.counters().num_decisions > 0)
    counters = planner.counters()
    assert (counters.num_decisions, counters.num_missed_requests) == (1, 4)
    assert counters.last_step_id == 9


# ===================== Policies in Python =====================


def verify_two(step: PlannedStep) -> StepPlan:
    num_rows = int(step.request.fixed[NUM_REQUESTS])
    return StepPlan(np.int32(2), NO_BUDGET_CAP, ModelState.OK, 0, 0, 4 * num_rows, 4.5, 1.0)


def test_a_policy_in_python_decides_in_the_same_loop(rig: Rig):
    planner = rig.attach(PolicySelection(9, PolicyCode.PYTHON, decide=verify_two))
    for step_id in range(7, 20):
        decision = rig.plan(make_request(step_id), make_rows(step_id - 2))
        assert (decision.budget, decision.policy_id, decision.expected_tokens) == (2, 9, 4.5)
    planner.set_policy(OFF)
    assert rig.plan(make_request(20), make_rows(18)).budget == 0


def test_a_policy_that_raises_leaves_the_step_to_the_fallback(rig: Rig, capsys):
    def fail(step: PlannedStep) -> StepPlan:
        raise ZeroDivisionError("third party")

    planner = rig.attach(PolicySelection(9, PolicyCode.PYTHON, decide=fail))
    rig.transport.publish(None, make_request(7))
    wait_until(lambda: planner.counters().num_policy_errors == 1)
    assert rig.transport.read(7) is FallbackReason.LATE
    assert planner.newest_failure == PolicyFailure(9, "third party")
    planner.set_policy(THROUGHPUT)
    assert rig.plan(make_request(8), make_rows(6)).budget == 12
    told = capsys.readouterr().out
    assert "third party" in told
    assert "step_id=7" in told


def test_each_policy_that_raises_is_logged_once(rig: Rig, capsys):
    def fail(step: PlannedStep) -> StepPlan:
        raise ZeroDivisionError

    planner = rig.attach(PolicySelection(9, PolicyCode.PYTHON, decide=fail))
    for count, policy_id in enumerate((9, 9, 10, 10), start=1):
        planner.set_policy(PolicySelection(policy_id, PolicyCode.PYTHON, decide=fail))
        rig.transport.publish(None, make_request(6 + count))
        wait_until(lambda count=count: planner.counters().num_policy_errors == count)
    assert planner.newest_failure is not None
    assert planner.newest_failure.policy_id == 10
    assert capsys.readouterr().out.count("policy failed") == 2


def test_a_selection_without_its_function_is_refused():
    with pytest.raises(ValueError, match="policy code PYTHON with decide=None"):
        PolicySelection(0, PolicyCode.PYTHON)


# ===================== Watching =====================


def test_recent_decisions_are_those_written(rig: Rig):
    planner = rig.attach()
    decisions = [rig.plan(make_request(t), make_rows(t - 2)) for t in range(2, 8)]
    recent = planner.recent_decisions()
    assert [entry.decision for entry in recent] == decisions
    assert [entry.index for entry in recent] == [1, 2, 3, 4, 5, 6]
    assert {(entry.num_requests, entry.num_draft_tokens) for entry in recent} == {(3, 12)}
    assert [entry.index for entry in planner.recent_decisions(after=4)] == [5, 6]
    assert [entry.index for entry in planner.recent_decisions(max_decisions=2)] == [5, 6]
    assert planner.recent_decisions(after=6) == []


def test_reports_are_drained_once_and_losses_counted(rig: Rig):
    rig.transport.report(make_report(1))  # before the scheduler came: nobody's loss
    planner = rig.attach()
    for step_id in (2, 3):
        rig.transport.report(make_report(step_id))
    reports = reports_of(planner.drain_reports())
    assert [report.step_id for report in reports] == [2, 3]
    assert (reports[0].verify_ms, reports[0].draft_ms) == (1.5, 0.25)
    assert reports[0].num_accepted.tolist() == [1, 1]
    assert reports_of(planner.drain_reports()) == []
    for step_id in range(4, 10):
        rig.transport.report(make_report(step_id))
    assert [report.step_id for report in reports_of(planner.drain_reports())] == [6, 7, 8, 9]
    counters = planner.counters()
    assert (counters.num_reports, counters.num_lost_reports) == (6, 2)


def test_an_idle_planner_beats(rig: Rig):
    rig.attach(config=PlannerConfig(heartbeat_ms=1))
    first = rig.transport.heartbeat_ns(0)
    wait_until(lambda: rig.transport.heartbeat_ns(0) > first)
    second = rig.transport.heartbeat_ns(0)
    wait_until(lambda: rig.transport.heartbeat_ns(0) > second)


def test_a_planner_that_hangs_is_silent(rig: Rig):
    entered, leave = threading.Event(), threading.Event()

    def hang(step: PlannedStep) -> StepPlan:
        entered.set()
        leave.wait(60)
        return verify_two(step)

    planner = rig.attach(PolicySelection(9, PolicyCode.PYTHON, decide=hang))
    wait_until(lambda: planner.silent_s < 0.05)
    rig.transport.publish(make_rows(5), make_request(7))
    assert entered.wait(TIMEOUT_S)
    try:
        silent_s = planner.silent_s
        wait_until(lambda: planner.silent_s > silent_s + 0.3)
        assert planner.is_running
    finally:
        leave.set()
    wait_until(lambda: planner.silent_s < 0.2)


def test_stop_ends_the_thread_and_may_be_repeated(rig: Rig):
    planner = rig.attach(config=PlannerConfig(heartbeat_ms=10_000))
    planner.stop()
    planner.stop()
    assert not planner.is_running


def test_the_thread_can_be_pinned(rig: Rig):
    core = min(os.sched_getaffinity(0))
    planner = rig.attach(config=PlannerConfig(core=core))
    rig.plan(make_request(7))
    assert os.sched_getaffinity(planner._thread.native_id) == {core}
    assert os.sched_getaffinity(threading.get_native_id()) >= {core}


@pytest.mark.parametrize("changed", [{"spin_us": -1}, {"heartbeat_ms": 0}])
def test_impossible_settings_name_the_value(changed: dict[str, int]):
    name, value = next(iter(changed.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}, accepted are"):
        PlannerConfig(**changed)


# ===================== Attaching =====================


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("abi_version", f"ABI version {ABI_VERSION + 1}, expected {ABI_VERSION}"),
        ("executor_region_bytes", "executor_region_bytes was announced as"),
        ("lane_region_bytes", "lane_region_bytes was announced as"),
    ],
)
def test_an_offer_that_is_not_kept_is_refused(rig: Rig, field: str, message: str):
    hello = rig.hello()
    setattr(hello.shared_memory, field, getattr(hello.shared_memory, field) + 1)
    with pytest.raises(RegionError, match=message):
        attach_regions(hello)


@pytest.mark.parametrize("field", ["max_requests", "max_draft_tokens"])
def test_a_model_that_does_not_fit_the_region_is_refused(rig: Rig, field: str):
    hello = rig.hello()
    setattr(hello.model, field, 1)
    with pytest.raises(RegionError, match="shared region has"):
        attach_regions(hello)


def test_warming_up_leaves_nothing_to_compile(rig: Rig):
    from specsched_scheduler.planner._loop import publish_plan, run_loop

    warm_up()
    compiled = [len(run_loop.signatures), len(publish_plan.signatures)]
    planner = rig.attach()
    rig.plan(make_request(7), make_rows(5))
    planner.set_policy(PolicySelection(9, PolicyCode.PYTHON, decide=verify_two))
    rig.plan(make_request(8), make_rows(6))
    assert [len(run_loop.signatures), len(publish_plan.signatures)] == compiled
