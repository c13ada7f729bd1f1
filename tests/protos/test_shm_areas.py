"""What goes into the areas comes out, and nothing out of range does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm import (
    RegionShape,
    create_executor_region,
    create_lane_region,
    lane,
    open_executor_region,
    open_lane_region,
    plan_arrays,
    report_ring,
)
from specsched_protocol.shm.layout import DECISION_WORDS
from specsched_protocol.shm.plan_area import (
    latest_publication,
    publish_request,
    read_confidences,
    read_request,
    write_confidences,
)
from specsched_protocol.shm.report_ring import latest_report, read_report, write_report
from specsched_protocol.shm.seqlock import EMPTY, INVALID, OK, TORN

BOOT_ID = bytes(16)
K = 5
MAX_REQUESTS = 6
MAX_U32 = 0xFFFF_FFFF


class Pair:
    """Both ends of one executor region."""

    def __init__(self) -> None:
        created = create_executor_region(RegionShape(MAX_REQUESTS, K, 4), BOOT_ID)
        received = open_executor_region(created.fd, MAX_REQUESTS, K, BOOT_ID)
        self.layout = created.layout
        self.writer, self.reader = created.words, received.words
        self.request = plan_arrays.new_request_arrays(self.layout)
        self.rows = plan_arrays.new_confidence_arrays(self.layout)
        self.report = report_ring.new_report_arrays(self.layout)

    def publish(self, publication: int = 1, **fixed: int) -> None:
        values = {"STEP_ID": 9, "SOURCE_STEP_ID": 7, "MAX_BUDGET": NO_BUDGET_CAP} | fixed
        for name, value in values.items():
            self.request.fixed[getattr(plan_arrays, name)] = value
        self.request.fixed[plan_arrays.PUBLICATION] = publication
        publish_request(self.writer, self.layout, self.request)

    def read(self, publication: int = 1) -> tuple[int, plan_arrays.RequestArrays]:
        out = plan_arrays.new_request_arrays(self.layout)
        return read_request(self.reader, self.layout, publication, 3, out), out

    def write_rows(self, index: int, source_step_id: int, num_rows: int) -> None:
        self.rows.fixed[:] = (index, source_step_id, num_rows)
        write_confidences(self.writer, self.layout, self.rows)

    def gather(
        self, request: plan_arrays.RequestArrays
    ) -> tuple[int, plan_arrays.GatheredConfidences]:
        out = plan_arrays.new_gathered_confidences(self.layout)
        return read_confidences(self.reader, self.layout, request, 3, out), out


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_rows=st.integers(0, MAX_REQUESTS))
def test_requests_round_trip(data: st.DataObject, num_rows: int):
    pair = Pair()
    draw = lambda low, high: np.array(  # noqa: E731
        data.draw(st.lists(st.integers(low, high), min_size=MAX_REQUESTS, max_size=MAX_REQUESTS))
    )
    pair.request.slot_id[:] = draw(0, MAX_REQUESTS - 1)
    pair.request.generation[:] = draw(0, MAX_U32)
    pair.request.num_draft_tokens[:] = draw(0, K)
    pair.request.samples[:] = draw(0, 1)
    pair.request.is_greedy[:] = draw(0, 1)
    pair.request.weight[:] = draw(0, 1000) / 8
    pair.request.context_tokens[:] = draw(0, MAX_U32)
    pair.publish(5, NUM_REQUESTS=num_rows, NUM_OTHER_TOKENS=8, NUM_PREFILL_TOKENS=8)
    status, out = pair.read(5)
    assert status == OK
    np.testing.assert_array_equal(out.fixed, pair.request.fixed)
    for name in out._fields[1:]:
        expected = getattr(pair.request, name)[:num_rows]
        np.testing.assert_array_equal(getattr(out, name)[:num_rows], expected, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_confidences_are_gathered_by_slot(data: st.DataObject):
    pair = Pair()
    slots = data.draw(st.permutations(range(MAX_REQUESTS)))
    lengths = data.draw(st.lists(st.integers(0, K), min_size=MAX_REQUESTS, max_size=MAX_REQUESTS))
    pair.rows.slot_id[:] = slots
    pair.rows.generation[:] = np.arange(MAX_REQUESTS) + MAX_U32 - MAX_REQUESTS
    pair.rows.num_draft_tokens[:] = lengths
    pair.rows.confidence[:] = np.random.default_rng(1).random((MAX_REQUESTS, K))
    pair.write_rows(3, source_step_id=7, num_rows=MAX_REQUESTS)
    order = data.draw(st.permutations(range(MAX_REQUESTS)))
    pair.request.slot_id[:] = np.array(slots)[order]
    pair.request.generation[:] = pair.rows.generation[order]
    pair.publish(NUM_REQUESTS=MAX_REQUESTS, CONFIDENCE_INDEX=3)
    status, out = pair.gather(pair.read()[1])
    assert status == OK
    for row, source in enumerate(order):
        length = lengths[source]
        assert out.num_valid[row] == length
        expected = pair.rows.confidence[source, :length]
        np.testing.assert_array_equal(out.confidence[row, :length], expected)
        assert np.isnan(out.confidence[row, length:]).all()


def test_impossible_confidences_pass_unchanged_to_be_repaired_there():
    pair = Pair()
    values = np.array([np.nan, np.inf, -1.0, 2.0, 0.5], dtype=np.float32)
    pair.rows.num_draft_tokens[0] = K
    pair.rows.confidence[0] = values
    pair.write_rows(1, 7, 1)
    pair.publish(NUM_REQUESTS=1, CONFIDENCE_INDEX=1)
    _, out = pair.gather(pair.read()[1])
    np.testing.assert_array_equal(out.confidence[0], values)


def test_a_row_of_another_generation_or_step_is_not_used():
    pair = Pair()
    pair.rows.slot_id[:3] = (0, 1, 2)
    pair.rows.generation[:3] = 4
    pair.rows.num_draft_tokens[:3] = 2
    pair.write_rows(1, 5, num_rows=3)  # the same buffer, two steps earlier
    pair.write_rows(3, 7, num_rows=2)  # row 2 sent nothing
    pair.request.slot_id[:3] = (0, 1, 2)
    pair.request.generation[:3] = (4, 5, 4)  # row 1 was reused meanwhile
    pair.publish(NUM_REQUESTS=3, CONFIDENCE_INDEX=3)
    status, out = pair.gather(pair.read()[1])
    assert status == OK
    assert out.num_valid[:3].tolist() == [2, 0, 0]


@pytest.mark.parametrize("fixed", [{"CONFIDENCE_INDEX": 2}, {"SOURCE_STEP_ID": 6}])
def test_confidences_other_than_those_named_are_told_missing(fixed: dict[str, int]):
    pair = Pair()
    pair.write_rows(4, source_step_id=7, num_rows=1)
    pair.publish(**({"NUM_REQUESTS": 1, "CONFIDENCE_INDEX": 4} | fixed))
    assert pair.gather(pair.read()[1])[0] == EMPTY


def test_two_publications_are_kept():
    pair = Pair()
    for publication in (1, 2, 3):
        pair.publish(publication)
    assert latest_publication(pair.reader, pair.layout) == 3
    assert [pair.read(publication)[0] for publication in (1, 2, 3, 4)] == [EMPTY, OK, OK, EMPTY]


@pytest.mark.parametrize(
    "fixed",
    [
        {"NUM_REQUESTS": -1},
        {"NUM_REQUESTS": MAX_REQUESTS + 1},
        {"NUM_REQUESTS": 1 << 62},
        {"SOURCE_STEP_ID": 8},
        {"SOURCE_STEP_ID": -1},
        {"STEP_ID": -5},
        {"NUM_OTHER_TOKENS": -1},
        {"NUM_OTHER_TOKENS": 1 << 40},
        {"NUM_PREFILL_TOKENS": 1},
        {"NUM_PREFILL_TOKENS": -1},
        {"MAX_BUDGET": -1},
        {"MAX_BUDGET": 1 << 32},
    ],
)
def test_counts_out_of_range_are_refused(fixed: dict[str, int]):
    pair = Pair()
    # Written word by word: the writer of a sound executor would not do it.
    pair.publish(NUM_REQUESTS=1)
    base = pair.layout.request + pair.layout.request_stride
    for name, value in fixed.items():
        pair.writer[base + 1 + getattr(plan_arrays, name)] = value
    assert pair.read()[0] == INVALID


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("slot_id", MAX_REQUESTS),
        ("slot_id", MAX_U32),
        ("num_draft_tokens", K + 1),
        ("num_draft_tokens", MAX_U32),
        ("weight", -1.0),
        ("weight", np.nan),
        ("weight", np.inf),
    ],
)
def test_rows_out_of_range_are_refused(column: str, value: float):
    pair = Pair()
    getattr(pair.request, column)[1] = value
    pair.publish(NUM_REQUESTS=1)
    assert pair.read()[0] == OK
    pair.publish(NUM_REQUESTS=2)
    assert pair.read()[0] == INVALID


def test_a_draft_count_out_of_range_does_not_lead_out_of_its_row():
    pair = Pair()
    pair.rows.num_draft_tokens[0] = 1
    pair.write_rows(1, 7, 1)
    base = pair.layout.confidence + pair.layout.confidence_stride
    pair.writer[base + 1 + 2 + 1] = -1 << 32  # num_draft_tokens of slot 0
    pair.publish(NUM_REQUESTS=1, CONFIDENCE_INDEX=1)
    status, out = pair.gather(pair.read()[1])
    assert status == OK
    assert out.num_valid[0] == K


def test_a_writer_that_died_half_way_is_torn_for_ever_not_waited_for():
    pair = Pair()
    pair.publish(1)
    pair.writer[pair.layout.request + pair.layout.request_stride] += 1
    assert pair.read()[0] == TORN


# ===================== Reports =====================


def write_one(pair: Pair, index: int) -> None:
    pair.report.fixed[:] = (index, 100 + index, 5, 8, 70, 0, 0, 2, 1, 2, 2)
    pair.report.fixed.view(np.float64)[report_ring.VERIFY_MS_BITS] = 1.5
    pair.report.slot_id[:2] = (3, 1)
    pair.report.generation[:2] = (MAX_U32, 0)
    pair.report.num_verified[:2] = (5, 2)
    pair.report.num_accepted[:2] = (4, 2)
    write_report(pair.writer, pair.layout, pair.report)


def test_reports_round_trip_until_they_are_overwritten():
    pair = Pair()
    out = report_ring.new_report_arrays(pair.layout)
    assert latest_report(pair.reader, pair.layout) == 0
    for index in range(1, 7):
        write_one(pair, index)
    assert latest_report(pair.reader, pair.layout) == 6
    statuses = [read_report(pair.reader, pair.layout, i, 3, out) for i in range(1, 7)]
    assert statuses == [EMPTY, EMPTY, OK, OK, OK, OK]
    np.testing.assert_array_equal(out.fixed, pair.report.fixed)
    for name in out._fields[1:]:
        assert getattr(out, name)[:2].tolist() == getattr(pair.report, name)[:2].tolist()


@pytest.mark.parametrize(
    ("column", "value"), [("slot_id", MAX_REQUESTS), ("num_verified", K + 1), ("num_accepted", 6)]
)
def test_reports_out_of_range_are_refused(column: str, value: int):
    pair = Pair()
    out = report_ring.new_report_arrays(pair.layout)
    write_one(pair, 1)
    getattr(pair.report, column)[0] = value
    write_report(pair.writer, pair.layout, pair.report)
    assert read_report(pair.reader, pair.layout, 1, 3, out) == INVALID


# ===================== Decisions =====================


def test_the_last_two_decisions_are_kept():
    created = create_lane_region(BOOT_ID, 0, 1)
    writer = open_lane_region(created.fd, BOOT_ID, 0, 1).words
    out = np.zeros(DECISION_WORDS, dtype=np.int64)
    assert lane.read_decision(created.words, 0, 3, out) == EMPTY
    for index, step_id in enumerate((0, 4, 6)):
        lane.write_decision(writer, index, np.arange(DECISION_WORDS, dtype=np.int64) + step_id)
    for step_id, status in ((0, EMPTY), (4, OK), (5, EMPTY), (6, OK)):
        assert lane.read_decision(created.words, step_id, 3, out) == status
        if status == OK:
            assert out.tolist() == list(range(step_id, step_id + DECISION_WORDS))


def test_the_heartbeat_is_what_was_beaten_last():
    created = create_lane_region(BOOT_ID, 0, 1)
    writer = open_lane_region(created.fd, BOOT_ID, 0, 1).words
    assert lane.heartbeat_ns(created.words) == 0
    lane.beat(writer, 123)
    assert lane.heartbeat_ns(created.words) == 123
