"""Steps as messages: what goes in comes out, and garbage is refused within bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_protocol.inline import (
    MAX_REPORTS,
    inline_message_bytes,
    pack_decision,
    pack_report,
    pack_request,
    unpack_decision,
    unpack_report,
    unpack_request,
)
from specsched_protocol.plan import NO_BUDGET_CAP, StepDecision
from specsched_protocol.shm import RegionShape, lane, plan_arrays, report_ring
from specsched_protocol.shm.layout import DECISION_WORDS, executor_layout
from specsched_protocol.v1 import scheduler_pb2 as pb

K = 3
MAX_REQUESTS = 5
LAYOUT = executor_layout(RegionShape(MAX_REQUESTS, K, 4))
MAX_U32 = 0xFFFF_FFFF
BIG = 1 << 63


def request_with(num_rows: int, rng: np.random.Generator, **fixed: int) -> pb.InlinePlanRequest:
    request = plan_arrays.new_request_arrays(LAYOUT)
    gathered = plan_arrays.new_gathered_confidences(LAYOUT)
    values = {"PUBLICATION": 4, "STEP_ID": 9, "SOURCE_STEP_ID": 7, "NUM_OTHER_TOKENS": 6}
    values |= {"NUM_PREFILL_TOKENS": 2, "MAX_BUDGET": 11, "NUM_REQUESTS": num_rows} | fixed
    for name, value in values.items():
        request.fixed[getattr(plan_arrays, name)] = value
    for column in (request.slot_id, request.generation, request.context_tokens):
        column[:] = rng.integers(0, MAX_U32, MAX_REQUESTS)
    request.num_draft_tokens[:] = rng.integers(0, K + 1, MAX_REQUESTS)
    request.samples[:] = rng.integers(0, 2, MAX_REQUESTS)
    request.is_greedy[:] = rng.integers(0, 2, MAX_REQUESTS)
    request.weight[:] = rng.random(MAX_REQUESTS)
    gathered.num_valid[:] = rng.integers(0, K + 1, MAX_REQUESTS)
    gathered.confidence[:] = rng.random((MAX_REQUESTS, K))
    gathered.confidence[0, 0] = np.nan
    message = pack_request(request, gathered)
    assert message == pb.InlinePlanRequest.FromString(message.SerializeToString())
    return message


def unpacked(
    message: pb.InlinePlanRequest,
) -> tuple[bool, plan_arrays.ConfidenceArrays, plan_arrays.RequestArrays]:
    rows = plan_arrays.new_confidence_arrays(LAYOUT)
    request = plan_arrays.new_request_arrays(LAYOUT)
    return unpack_request(message, rows, request), rows, request


@given(num_rows=st.integers(0, MAX_REQUESTS), seed=st.integers(0, 99))
def test_requests_round_trip_with_their_confidences(num_rows, seed):
    message = request_with(num_rows, np.random.default_rng(seed))
    is_whole, rows, request = unpacked(message)
    assert is_whole
    gathered = plan_arrays.GatheredConfidences(
        rows.num_draft_tokens.astype(np.int64), rows.confidence
    )
    assert pack_request(request, gathered) == message
    assert list(rows.fixed[1:]) == [7, num_rows]
    np.testing.assert_array_equal(rows.slot_id[:num_rows], request.slot_id[:num_rows])
    np.testing.assert_array_equal(rows.generation[:num_rows], request.generation[:num_rows])


@pytest.mark.parametrize("cap", [0, 11, NO_BUDGET_CAP])
def test_a_cap_and_no_cap_round_trip(cap):
    message = request_with(1, np.random.default_rng(0), MAX_BUDGET=cap)
    assert message.HasField("max_budget") == (cap != NO_BUDGET_CAP)
    assert unpacked(message)[2].fixed[plan_arrays.MAX_BUDGET] == cap


COLUMNS = [
    field.name for field in pb.InlinePlanRequest.DESCRIPTOR.fields if field.type == field.TYPE_BYTES
]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0" * 4])
def test_column_of_another_length_is_refused(column, change):
    message = request_with(3, np.random.default_rng(0))
    setattr(message, column, change(getattr(message, column)))
    assert not unpacked(message)[0]


def test_more_rows_than_there_is_room_for_are_refused():
    message = request_with(MAX_REQUESTS, np.random.default_rng(0))
    row_bytes = {name: len(getattr(message, name)) // MAX_REQUESTS for name in COLUMNS}
    for name in COLUMNS:
        setattr(message, name, getattr(message, name) + bytes(row_bytes[name]))
    assert not unpacked(message)[0]


@pytest.mark.parametrize("field", ["publication", "step_id", "source_step_id"])
def test_number_beyond_a_word_is_refused(field):
    message = request_with(1, np.random.default_rng(0))
    setattr(message, field, BIG - 1)
    assert unpacked(message)[0]
    setattr(message, field, BIG)
    assert not unpacked(message)[0]


@settings(max_examples=200)
@given(data=st.binary(max_size=400))
def test_garbage_neither_raises_nor_leaves_the_arrays(data):
    try:
        steps = pb.InlineSteps.FromString(data)
    except Exception:  # no message at all: gRPC refuses it before anybody sees it
        return
    unpacked(steps.plan_request)
    report = report_ring.new_report_arrays(LAYOUT)
    for message in steps.reports:
        unpack_report(message, report)


def test_reports_round_trip():
    report = report_ring.new_report_arrays(LAYOUT)
    report.fixed[:] = (0, 12, 30, 32, 400, 0, 0, 2, 5, 1, 3)
    floats = report.fixed.view(np.float64)
    floats[report_ring.DRAFT_MS_BITS], floats[report_ring.VERIFY_MS_BITS] = 0.25, 1.5
    report.slot_id[:2], report.generation[:2] = (0, 4), (7, 8)
    report.num_verified[:2], report.num_accepted[:2] = (3, 2), (1, 2)
    out = report_ring.new_report_arrays(LAYOUT)
    assert unpack_report(pack_report(report), out)
    np.testing.assert_array_equal(out.fixed, report.fixed)
    for sent, received in zip(report[1:], out[1:], strict=True):
        np.testing.assert_array_equal(received[:2], sent[:2])


DECISION = StepDecision(
    step_id=9,
    source_step_id=7,
    epoch=3,
    budget=5,
    max_verify_len=2,
    next_draft_tokens=3,
    expected_tokens=4.5,
    expected_ms=1.25,
    policy_id=6,
    model_state=1,
    flags=5,
    num_repaired_confidences=2,
    decided_ns=1234,
)


@pytest.mark.parametrize("cap", [0, 2, NO_BUDGET_CAP])
def test_decisions_round_trip_but_for_the_clock(cap):
    decision = dataclasses.replace(DECISION, max_verify_len=cap)
    words = np.zeros(DECISION_WORDS, dtype=np.int64)
    assert unpack_decision(pack_decision(decision), 99, words)
    floats = words.view(np.float64)
    assert words[lane.DECIDED_NS] == 99
    assert words[lane.MAX_VERIFY_LEN] == cap
    assert floats[lane.EXPECTED_TOKENS_BITS] == 4.5
    assert floats[lane.EXPECTED_MS_BITS] == 1.25
    names = ("STEP_ID", "SOURCE_STEP_ID", "EPOCH", "BUDGET", "NEXT_DRAFT_TOKENS", "POLICY_ID")
    assert [words[getattr(lane, name)] for name in names] == [9, 7, 3, 5, 3, 6]
    assert [words[lane.MODEL_STATE], words[lane.FLAGS], words[lane.NUM_REPAIRED]] == [1, 5, 2]


@pytest.mark.parametrize("field", ["step_id", "source_step_id", "epoch", "policy_id"])
def test_decision_beyond_a_word_is_refused(field):
    message = pack_decision(DECISION)
    setattr(message, field, BIG)
    assert not unpack_decision(message, 0, np.zeros(DECISION_WORDS, dtype=np.int64))


def test_no_message_is_larger_than_announced():
    rng = np.random.default_rng(0)
    request = request_with(MAX_REQUESTS, rng, PUBLICATION=BIG - 1, STEP_ID=BIG - 1)
    report = report_ring.new_report_arrays(LAYOUT)
    report.fixed[:] = MAX_U32
    report.fixed[report_ring.NUM_ROWS] = MAX_REQUESTS
    steps = pb.InlineSteps(plan_request=request, reports=[pack_report(report)] * MAX_REPORTS)
    size = len(pb.AttachRequest(steps=steps).SerializeToString())
    assert size <= inline_message_bytes(MAX_REQUESTS, K)
