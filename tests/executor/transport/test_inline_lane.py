"""A lane served by its own process for a scheduler behind a stream."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import pytest
from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.handoff import HandoffError, fetch_descriptors
from specsched_protocol.inline import MAX_REPORTS, pack_decision
from specsched_protocol.plan import NO_BUDGET_CAP, FallbackReason, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.protos.builders import make_report, make_request, make_rows

NUM_REPORT_SLOTS = 16
DECISION = StepDecision(
    step_id=2,
    source_step_id=0,
    epoch=1,
    budget=5,
    max_verify_len=NO_BUDGET_CAP,
    next_draft_tokens=4,
    expected_tokens=4.5,
    expected_ms=1.25,
    policy_id=0,
    model_state=1,
    flags=0,
    num_repaired_confidences=0,
    decided_ns=0,
)


@pytest.fixture
def transport(tmp_path) -> Iterator[SharedMemoryTransport]:
    shape = RegionShape(8, 4, num_report_slots=NUM_REPORT_SLOTS)
    it = SharedMemoryTransport(RunDir.open(tmp_path / "run"), shape)
    yield it
    it.close()


@pytest.fixture
def inline(transport) -> InlineLane:
    offer = transport.open_lane(share_memory=False)
    lane = transport.run_inline(offer.lane)
    transport.lane_ready(offer.lane)
    transport.activate(offer.lane)
    return lane


def test_the_request_and_its_confidences_become_one_message(transport, inline):
    rows = make_rows(1, num_rows=2)
    rows.confidence[1] = (0.5, 0.25, np.nan, 2.0)
    transport.publish(rows, make_request(3, num_rows=3, max_budget=7))
    steps = inline.take()
    request = steps.plan_request
    assert (request.step_id, request.source_step_id, request.max_budget) == (3, 1, 7)
    assert (request.publication, request.num_other_tokens) == (1, 3)
    assert np.frombuffer(request.slot_id, "<u4").tolist() == [0, 1, 2]
    # The third request has no confidence yet.
    assert np.frombuffer(request.num_confidences, "<u4").tolist() == [4, 4, 0]
    sent = np.frombuffer(request.confidence, "<f4").reshape(3, 4)
    np.testing.assert_array_equal(sent[:2], rows.confidence)


def test_a_mailbox_holds_the_newest_request_only(transport, inline):
    for step_id in range(3, 8):
        transport.publish(make_rows(step_id - 2), make_request(step_id))
    steps = inline.take()
    assert (steps.plan_request.step_id, steps.plan_request.publication) == (7, 5)
    assert inline.take() is None, "told once"


def test_a_request_without_any_confidences_tells_so(transport, inline):
    transport.publish(None, make_request(3))
    request = inline.take().plan_request
    assert np.frombuffer(request.num_confidences, "<u4").tolist() == [0, 0, 0]


def test_publishing_rings_the_doorbell(transport, inline):
    with pytest.raises(BlockingIOError):
        os.eventfd_read(inline.fileno())
    transport.publish(make_rows(1), make_request(3))
    assert os.eventfd_read(inline.fileno()) == 1


def test_reports_go_along_in_bounded_portions_and_each_once(transport, inline):
    for step_id in range(1, MAX_REPORTS + 3):
        transport.report(make_report(step_id))
    first, second = inline.take(), inline.take()
    assert [r.step_id for r in first.reports] == list(range(1, MAX_REPORTS + 1))
    assert [r.step_id for r in second.reports] == [MAX_REPORTS + 1, MAX_REPORTS + 2]
    assert not first.HasField("plan_request")
    assert inline.take() is None


def test_reports_overwritten_before_they_were_taken_are_skipped(transport, inline):
    num_reports = 3 * NUM_REPORT_SLOTS
    for step_id in range(1, num_reports + 1):
        transport.report(make_report(step_id))
    taken: list[int] = []
    while (steps := inline.take()) is not None:
        taken += [report.step_id for report in steps.reports]
    assert taken == list(range(num_reports - NUM_REPORT_SLOTS + 1, num_reports + 1))


def test_what_was_reported_before_the_lane_opened_is_not_told(transport):
    transport.report(make_report(1))
    inline = transport.run_inline(transport.open_lane(share_memory=False).lane)
    transport.report(make_report(2))
    assert [report.step_id for report in inline.take().reports] == [2]


def test_a_delivered_decision_is_read_like_any_other(transport, inline):
    transport.publish(None, make_request(2))
    assert transport.read(2) is FallbackReason.LATE
    inline.deliver(pack_decision(DECISION))
    decision = transport.read(2)
    assert dataclasses.replace(decision, decided_ns=0) == DECISION
    assert transport.heartbeat_ns(0) == decision.decided_ns > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step_id": 3}, FallbackReason.LATE),
        ({"epoch": 9}, FallbackReason.WRONG_EPOCH),
        ({"source_step_id": 1}, FallbackReason.STALE_SOURCE),
        ({"budget": 13}, FallbackReason.IMPOSSIBLE),
        ({"max_verify_len": 5}, FallbackReason.IMPOSSIBLE),
        ({"next_draft_tokens": 5}, FallbackReason.IMPOSSIBLE),
        ({"model_state": 0}, FallbackReason.IMPOSSIBLE),
        ({"expected_tokens": float("nan")}, FallbackReason.IMPOSSIBLE),
        ({"expected_ms": float("inf")}, FallbackReason.IMPOSSIBLE),
        ({"expected_ms": -1.0}, FallbackReason.IMPOSSIBLE),
    ],
)
def test_garbage_decisions_are_judged_as_in_shared_memory(transport, inline, changes, reason):
    transport.publish(None, make_request(2))
    message = pack_decision(DECISION)
    for name, value in changes.items():
        setattr(message, name, value)
    inline.deliver(message)
    assert transport.read(2) is reason


@pytest.mark.parametrize("field", ["step_id", "source_step_id", "epoch", "policy_id"])
def test_decisions_that_no_lane_can_hold_are_counted(transport, inline, field):
    transport.publish(None, make_request(2))
    message = pack_decision(DECISION)
    setattr(message, field, 1 << 63)
    inline.deliver(message)
    assert transport.read(2) is FallbackReason.LATE
    assert inline.num_refused_decisions == 1


def test_decisions_for_a_closed_lane_are_read_by_nobody(transport, inline):
    transport.publish(None, make_request(2))
    transport.close_lane(0)
    inline.deliver(pack_decision(DECISION))
    assert transport.read(2) is FallbackReason.NO_SCHEDULER
    transport.lane_ready(transport.open_lane(share_memory=False).lane)
    transport.activate(0)
    assert transport.read(2) is FallbackReason.LATE


def test_a_lane_that_shares_no_memory_offers_none(transport):
    assert transport.open_lane(share_memory=False).shared_memory is None


def test_a_lane_run_inline_is_handed_to_nobody_any_more(transport):
    offer = transport.open_lane()
    transport.run_inline(offer.lane)
    shared: pb.SharedMemoryOffer = offer.shared_memory
    with pytest.raises(HandoffError, match="unknown nonce"):
        fetch_descriptors(shared.handoff_socket_path, shared.nonce)
