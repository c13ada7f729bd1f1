"""The executor's end: every plan that must not be followed is refused and counted."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from specsched_executor.transport import staging
from specsched_executor.transport.lanes import MAX_LANES, LaneError, LaneOffer
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.handoff import HandoffError, fetch_descriptors
from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import (
    RegionShape,
    lane,
    open_executor_region,
    open_lane_region,
    plan_arrays,
    report_ring,
)
from specsched_protocol.shm.layout import DECISION_WORDS, LANE_DECISION
from specsched_protocol.shm.plan_area import latest_publication, read_confidences, read_request
from specsched_protocol.shm.seqlock import OK

from tests.protos.builders import make_report, make_request, make_rows

K = 4
MAX_REQUESTS = 8
NEVER_NS = 3600 * 10**9


class FakeScheduler:
    """Maps an offer as a scheduler does and writes decisions by hand."""

    def __init__(self, transport: SharedMemoryTransport, offer: LaneOffer) -> None:
        shared = offer.shared_memory
        received = fetch_descriptors(Path(shared.handoff_socket_path), shared.nonce)
        boot_id = transport.boot_id
        self.executor = open_executor_region(received.executor_region, MAX_REQUESTS, K, boot_id)
        self.lane = open_lane_region(received.lane_region, boot_id, offer.lane, offer.epoch)
        self.doorbell = received.doorbell
        self.epoch = offer.epoch
        self._num_decisions = 0

    def decide(self, step_id: int, **changed: object) -> StepDecision:
        decision = StepDecision(
            step_id=step_id,
            source_step_id=step_id - 2,
            epoch=self.epoch,
            budget=5,
            max_verify_len=NO_BUDGET_CAP,
            next_draft_tokens=K,
            expected_tokens=7.5,
            expected_ms=1.25,
            policy_id=3,
            model_state=1,
            flags=2,
            num_repaired_confidences=1,
            decided_ns=99,
        )
        decision = replace(decision, **changed)  # type: ignore[arg-type]
        words = np.zeros(DECISION_WORDS, dtype=np.int64)
        names = [
            "step_id",
            "source_step_id",
            "epoch",
            "budget",
            "max_verify_len",
            "next_draft_tokens",
        ]
        words[: len(names)] = [getattr(decision, name) for name in names]
        floats = words.view(np.float64)
        floats[lane.EXPECTED_TOKENS_BITS] = decision.expected_tokens
        floats[lane.EXPECTED_MS_BITS] = decision.expected_ms
        words[lane.POLICY_ID] = decision.policy_id
        words[lane.MODEL_STATE] = decision.model_state
        words[lane.FLAGS] = decision.flags
        words[lane.NUM_REPAIRED] = decision.num_repaired_confidences
        words[lane.DECIDED_NS] = decision.decided_ns
        lane.write_decision(self.lane.words, self._num_decisions, words)
        self._num_decisions += 1
        return decision


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SharedMemoryTransport]:
    shape = RegionShape(MAX_REQUESTS, K, num_report_slots=4)
    transport = SharedMemoryTransport(RunDir.open(tmp_path / "run"), shape)
    yield transport
    transport.close()


def attach(transport: SharedMemoryTransport, *, activate: bool = True) -> FakeScheduler:
    offer = transport.open_lane()
    scheduler = FakeScheduler(transport, offer)
    transport.lane_ready(offer.lane)
    if activate:
        transport.activate(offer.lane)
    return scheduler


def only(transport: SharedMemoryTransport, reason: FallbackReason) -> bool:
    """Whether this is the one fallback counted, and no plan was."""
    counters = transport.counters()
    expected = {other: int(other is reason) for other in FallbackReason}
    return counters.num_fallbacks == expected and counters.num_plans_on_time == 0


# ===================== Reading =====================


def test_a_plan_on_time_is_followed(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(make_rows(5), make_request(7))
    decision = scheduler.decide(7)
    assert transport.read(7) == decision
    counters = transport.counters()
    assert counters.num_plans_on_time == 1
    assert sum(counters.num_fallbacks.values()) == 0


def test_a_plan_that_comes_while_it_is_awaited_is_followed(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(make_rows(5), make_request(7))
    deciding = threading.Timer(0.05, scheduler.decide, (7,))
    deciding.start()
    transport.await_decision(7, time.monotonic_ns() + NEVER_NS)
    deciding.join()
    assert isinstance(transport.read(7), StepDecision)


def test_a_plan_is_awaited_no_longer_than_there_is_time(transport: SharedMemoryTransport):
    attach(transport)
    transport.publish(make_rows(5), make_request(7))
    until_ns = time.monotonic_ns() + 20_000_000
    transport.await_decision(7, until_ns)
    assert time.monotonic_ns() >= until_ns
    assert transport.read(7) is FallbackReason.LATE


def test_no_plan_is_awaited_of_somebody_who_will_not_answer(transport: SharedMemoryTransport):
    until_ns = time.monotonic_ns() + NEVER_NS  # each would take an hour
    transport.publish(None, make_request(7))
    transport.await_decision(7, until_ns)
    attach(transport)
    transport.await_decision(7, until_ns)  # attached after it was asked
    transport.await_decision(8, until_ns)  # not asked
    for step_id in range(8, 16):
        transport.publish(None, make_request(step_id))
        transport.read(step_id)
    transport.publish(None, make_request(16))
    transport.await_decision(16, until_ns)  # late for many steps in a row


def test_no_scheduler(transport: SharedMemoryTransport):
    transport.publish(None, make_request(7))
    assert transport.read(7) is FallbackReason.NO_SCHEDULER
    assert only(transport, FallbackReason.NO_SCHEDULER)


def test_an_attached_scheduler_without_activation_does_not_count(transport: SharedMemoryTransport):
    scheduler = attach(transport, activate=False)
    transport.publish(None, make_request(7))
    scheduler.decide(7)
    assert transport.read(7) is FallbackReason.NO_SCHEDULER


@pytest.mark.parametrize("decided", [None, 6, 8])
def test_late(transport: SharedMemoryTransport, decided: int | None):
    scheduler = attach(transport)
    transport.publish(None, make_request(7))
    if decided is not None:
        scheduler.decide(decided)
    assert transport.read(7) is FallbackReason.LATE
    assert only(transport, FallbackReason.LATE)


def test_a_plan_nobody_asked_for_is_not_followed(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    scheduler.decide(7)
    assert transport.read(7) is FallbackReason.LATE


def test_torn(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(None, make_request(7))
    scheduler.decide(7)
    scheduler.lane.words[LANE_DECISION] += 1  # as if it had died while writing
    assert transport.read(7) is FallbackReason.TORN
    assert only(transport, FallbackReason.TORN)


@pytest.mark.parametrize("source_step_id", [4, 6, 7, -1])
def test_stale_source(transport: SharedMemoryTransport, source_step_id: int):
    scheduler = attach(transport)
    transport.publish(None, make_request(7))
    scheduler.decide(7, source_step_id=source_step_id)
    assert transport.read(7) is FallbackReason.STALE_SOURCE
    assert only(transport, FallbackReason.STALE_SOURCE)


@pytest.mark.parametrize("epoch_offset", [-1, 1])
def test_wrong_epoch(transport: SharedMemoryTransport, epoch_offset: int):
    scheduler = attach(transport)
    transport.publish(None, make_request(7))
    scheduler.decide(7, epoch=scheduler.epoch + epoch_offset)
    assert transport.read(7) is FallbackReason.WRONG_EPOCH
    assert only(transport, FallbackReason.WRONG_EPOCH)


@pytest.mark.parametrize(
    "changed",
    [
        {"budget": 13},
        {"budget": -1},
        {"budget": 1 << 62},
        {"max_verify_len": K + 1},
        {"max_verify_len": -1},
        {"next_draft_tokens": K + 1},
        {"next_draft_tokens": -1},
        {"model_state": 0},
        {"model_state": 3},
        {"expected_tokens": float("nan")},
        {"expected_ms": float("inf")},
        {"expected_ms": -1.0},
    ],
)
def test_impossible(transport: SharedMemoryTransport, changed: dict[str, object]):
    scheduler = attach(transport)
    transport.publish(None, make_request(7, num_rows=3, num_draft_tokens=4))
    scheduler.decide(7, **changed)
    assert transport.read(7) is FallbackReason.IMPOSSIBLE
    assert only(transport, FallbackReason.IMPOSSIBLE)


def test_the_bounds_themselves_are_possible(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(None, make_request(7, num_rows=3, num_draft_tokens=4))
    scheduler.decide(7, budget=12, max_verify_len=K, next_draft_tokens=0, expected_ms=0.0)
    assert isinstance(transport.read(7), StepDecision)


def test_a_budget_above_the_executors_cap_is_impossible(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(None, make_request(7, max_budget=4))
    scheduler.decide(7, budget=5)
    assert transport.read(7) is FallbackReason.IMPOSSIBLE


# ===================== Publishing =====================


def test_what_is_published_arrives_and_rings(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(make_rows(5, confidence=0.25), make_request(7))
    region = scheduler.executor
    request = plan_arrays.new_request_arrays(region.layout)
    gathered = plan_arrays.new_gathered_confidences(region.layout)
    assert os.eventfd_read(scheduler.doorbell.fileno()) == 1
    assert latest_publication(region.words, region.layout) == 1
    assert read_request(region.words, region.layout, 1, 1, request) == OK
    assert request.fixed[plan_arrays.STEP_ID] == 7
    assert read_confidences(region.words, region.layout, request, 1, gathered) == OK
    assert (gathered.confidence[:3] == 0.25).all()


def test_a_scheduler_that_never_looks_does_not_block(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    os.eventfd_write(scheduler.doorbell.fileno(), 2**64 - 2)  # the largest count
    transport.publish(None, make_request(7))
    assert transport.counters().num_requests == 1


def test_any_dtype_and_layout_is_taken(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    rows, request = make_rows(5), make_request(7)
    read_only = request.slot_id.astype(np.int64)
    read_only.flags.writeable = False
    num_compiled = len(staging.publish_step.signatures)
    transport.publish(
        replace(rows, confidence=np.asfortranarray(rows.confidence.astype(np.float64))),
        replace(request, slot_id=read_only, samples=np.ones(6, dtype=np.uint8)[::2]),
    )
    assert latest_publication(scheduler.executor.words, scheduler.executor.layout) == 1
    assert len(staging.publish_step.signatures) == num_compiled == 1


@pytest.mark.parametrize(
    ("rows", "request_"),
    [
        (None, make_request(7, num_rows=MAX_REQUESTS + 1)),
        (None, make_request(7, num_draft_tokens=K + 1)),
        (None, make_request(7, source_step_id=6)),
        (None, replace(make_request(7), slot_id=np.array([0, 1, MAX_REQUESTS]))),
        (None, replace(make_request(7), weight=np.ones(2, dtype=np.float32))),
        (None, replace(make_request(7), num_prefill_tokens=4)),
        (make_rows(5, num_rows=MAX_REQUESTS + 1), make_request(7)),
        (make_rows(5, num_draft_tokens=K + 1), make_request(7)),
        (make_rows(5, max_draft_tokens=K + 1, num_draft_tokens=1), make_request(7)),
        (replace(make_rows(5), generation=np.ones(2, dtype=np.uint32)), make_request(7)),
    ],
)
def test_a_request_that_does_not_fit_is_counted_not_raised(transport, rows, request_):
    scheduler = attach(transport)
    transport.publish(rows, request_)
    assert transport.counters().num_refused_requests == 1
    assert latest_publication(scheduler.executor.words, scheduler.executor.layout) == 0
    scheduler.decide(7)
    assert transport.read(7) is FallbackReason.LATE
    transport.publish(make_rows(5), make_request(7))
    assert latest_publication(scheduler.executor.words, scheduler.executor.layout) == 1


def test_reports_arrive_and_those_that_do_not_fit_are_counted(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    region = scheduler.executor
    transport.report(make_report(3))
    transport.report(make_report(4, num_rows=MAX_REQUESTS + 1))
    transport.report(make_report(5, num_accepted=3))
    transport.report(make_report(6))
    assert report_ring.latest_report(region.words, region.layout) == 2
    assert transport.counters().num_reports == 2
    assert transport.counters().num_dropped_reports == 2
    out = report_ring.new_report_arrays(region.layout)
    assert report_ring.read_report(region.words, region.layout, 2, 1, out) == OK
    assert out.fixed[report_ring.STEP_ID] == 6


# ===================== Lanes =====================


def test_lanes_are_bounded_and_come_back(transport: SharedMemoryTransport):
    offers = [transport.open_lane() for _ in range(MAX_LANES)]
    assert [offer.lane for offer in offers] == list(range(MAX_LANES))
    with pytest.raises(LaneError, match="all 4 lanes are taken"):
        transport.open_lane()
    transport.close_lane(2)
    again = transport.open_lane()
    assert again.lane == 2
    assert again.epoch > max(offer.epoch for offer in offers)


def test_a_closed_lane_cannot_be_fetched_any_more(transport: SharedMemoryTransport):
    offer = transport.open_lane()
    transport.close_lane(offer.lane)
    with pytest.raises(HandoffError, match="unknown nonce"):
        FakeScheduler(transport, offer)


def test_a_revived_scheduler_writes_where_nobody_looks(transport: SharedMemoryTransport):
    old = attach(transport)
    transport.close_lane(0)
    new = attach(transport)
    transport.publish(None, make_request(7))
    old.decide(7, budget=1)
    old.decide(7, budget=1, epoch=new.epoch)  # even if it guessed the epoch
    assert transport.read(7) is FallbackReason.LATE
    new.decide(7, budget=2)
    decision = transport.read(7)
    assert isinstance(decision, StepDecision)
    assert decision.budget == 2
    with pytest.raises(BlockingIOError):
        os.eventfd_read(old.doorbell.fileno())


def test_lanes_of_two_schedulers_are_apart(transport: SharedMemoryTransport):
    first, second = attach(transport), attach(transport, activate=False)
    transport.publish(None, make_request(7))
    first.decide(7, budget=1)
    second.decide(7, budget=2)
    assert transport.read(7).budget == 1
    transport.activate(1)
    assert transport.read(7).budget == 2
    for scheduler in (first, second):
        assert os.eventfd_read(scheduler.doorbell.fileno()) == 1


def test_closing_the_active_lane_leaves_no_scheduler(transport: SharedMemoryTransport):
    scheduler = attach(transport)
    transport.publish(None, make_request(7))
    scheduler.decide(7)
    transport.close_lane(0)
    transport.close_lane(0)
    assert transport.read(7) is FallbackReason.NO_SCHEDULER


def test_only_ready_lanes_can_be_activated(transport: SharedMemoryTransport):
    with pytest.raises(LaneError, match=r"lane 0 is not open, open are \[\]"):
        transport.activate(0)
    transport.open_lane()
    with pytest.raises(LaneError, match="lane 0 is not ready"):
        transport.activate(0)
    with pytest.raises(LaneError, match="lane 3 is not open"):
        transport.lane_ready(3)


def test_close_minds_no_run_directory_that_is_gone(tmp_path: Path):
    transport = SharedMemoryTransport(RunDir.open(tmp_path / "run"), RegionShape(2, 2))
    shutil.rmtree(tmp_path / "run")
    transport.close()


def test_close_removes_the_socket_and_its_folder(tmp_path: Path):
    run_dir = RunDir.open(tmp_path / "run")
    transport = SharedMemoryTransport(run_dir, RegionShape(2, 2))
    folder = run_dir.executor_dir(transport.boot_id)
    assert (folder / "handoff.sock").is_socket()
    transport.close()
    transport.close()
    assert not folder.exists()
