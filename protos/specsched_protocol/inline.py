"""Steps as messages of the Attach stream, for peers that share no memory.

Both ends keep the arrays of the shared-memory protocol and these functions move them to messages
and back: `pack_*` makes a message, `unpack_*` fills arrays and returns whether everything in the
message could be held by them. An unpacked record is bounded, not yet checked: its receiver calls
the same `is_valid_request`, `are_valid_confidences` and `is_valid_report` as a reader of memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specsched_protocol.plan import NO_BUDGET_CAP, StepDecision
from specsched_protocol.shm import lane
from specsched_protocol.shm import plan_arrays as plan
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

__all__ = [
    "MAX_REPORTS",
    "inline_message_bytes",
    "pack_decision",
    "pack_report",
    "pack_request",
    "unpack_decision",
    "unpack_report",
    "unpack_request",
]

MAX_REPORTS = 8
"""Reports that one message carries at most; the rest goes with the next."""

_MAX_INT64 = (1 << 63) - 1
_UINT32, _FLOAT32, _UINT8 = (np.dtype(name) for name in ("<u4", "<f4", "u1"))
_REQUEST_ROW_BYTES = 6 * _UINT32.itemsize + 2 * _UINT8.itemsize
_REPORT_ROW_BYTES = 4 * _UINT32.itemsize + _UINT8.itemsize
_FIXED_BYTES = 256
"""More than the scalar fields and the lengths of one record take."""


def inline_message_bytes(max_requests: int, max_draft_tokens: int) -> int:
    """Upper bound on an AttachRequest with the steps of an executor of this shape."""
    request_row = _REQUEST_ROW_BYTES + max_draft_tokens * _FLOAT32.itemsize
    rows = max_requests * (request_row + MAX_REPORTS * _REPORT_ROW_BYTES)
    return rows + (1 + MAX_REPORTS) * _FIXED_BYTES


# ===================== Plan request =====================


def pack_request(
    request: plan.RequestArrays, gathered: plan.GatheredConfidences
) -> pb.InlinePlanRequest:
    """The message of a request and of the confidences gathered for its rows."""
    num_rows = int(request.fixed[plan.NUM_REQUESTS])
    max_budget = int(request.fixed[plan.MAX_BUDGET])
    return pb.InlinePlanRequest(
        publication=int(request.fixed[plan.PUBLICATION]),
        step_id=int(request.fixed[plan.STEP_ID]),
        source_step_id=int(request.fixed[plan.SOURCE_STEP_ID]),
        num_other_tokens=int(request.fixed[plan.NUM_OTHER_TOKENS]),
        num_prefill_tokens=int(request.fixed[plan.NUM_PREFILL_TOKENS]),
        max_budget=None if max_budget == NO_BUDGET_CAP else max_budget,
        slot_id=_column(request.slot_id[:num_rows], _UINT32),
        generation=_column(request.generation[:num_rows], _UINT32),
        num_draft_tokens=_column(request.num_draft_tokens[:num_rows], _UINT32),
        samples=_column(request.samples[:num_rows], _UINT8),
        weight=_column(request.weight[:num_rows], _FLOAT32),
        context_tokens=_column(request.context_tokens[:num_rows], _UINT32),
        is_greedy=_column(request.is_greedy[:num_rows], _UINT8),
        num_confidences=_column(gathered.num_valid[:num_rows], _UINT32),
        confidence=_column(gathered.confidence[:num_rows], _FLOAT32),
    )


def unpack_request(
    message: pb.InlinePlanRequest, rows: plan.ConfidenceArrays, request: plan.RequestArrays
) -> bool:
    """Fill `request` and the `rows` that go with it, all but the index of the confidences.

    False if a column has another length than the others, or more rows than the arrays, or if a
    number is above 2^63 - 1; the arrays then hold a mixture.
    """
    max_budget = message.max_budget if message.HasField("max_budget") else NO_BUDGET_CAP
    fixed = (
        (plan.PUBLICATION, message.publication),
        (plan.STEP_ID, message.step_id),
        (plan.SOURCE_STEP_ID, message.source_step_id),
        (plan.NUM_OTHER_TOKENS, message.num_other_tokens),
        (plan.NUM_PREFILL_TOKENS, message.num_prefill_tokens),
        (plan.MAX_BUDGET, max_budget),
    )
    columns = (
        (message.slot_id, _UINT32, request.slot_id),
        (message.generation, _UINT32, request.generation),
        (message.num_draft_tokens, _UINT32, request.num_draft_tokens),
        (message.samples, _UINT8, request.samples),
        (message.weight, _FLOAT32, request.weight),
        (message.context_tokens, _UINT32, request.context_tokens),
        (message.is_greedy, _UINT8, request.is_greedy),
        (message.num_confidences, _UINT32, rows.num_draft_tokens),
        (message.confidence, _FLOAT32, rows.confidence),
    )
    num_rows = len(message.slot_id) // _UINT32.itemsize
    if not (_fill_fixed(fixed, request.fixed) and _fill_columns(columns, num_rows)):
        return False
    request.fixed[plan.NUM_REQUESTS] = num_rows
    rows.fixed[plan.ROWS_SOURCE_STEP_ID] = request.fixed[plan.SOURCE_STEP_ID]
    rows.fixed[plan.ROWS_NUM_ROWS] = num_rows
    rows.slot_id[:num_rows] = request.slot_id[:num_rows]
    rows.generation[:num_rows] = request.generation[:num_rows]
    return True


# ===================== Report =====================


def pack_report(report: ring.ReportArrays) -> pb.InlineReport:
    """The message of a report."""
    floats = report.fixed.view(np.float64)
    num_rows = int(report.fixed[ring.NUM_ROWS])
    return pb.InlineReport(
        step_id=int(report.fixed[ring.STEP_ID]),
        num_tokens=int(report.fixed[ring.NUM_TOKENS]),
        padded_num_tokens=int(report.fixed[ring.PADDED_NUM_TOKENS]),
        num_prefill_tokens=int(report.fixed[ring.NUM_PREFILL_TOKENS]),
        num_sampling=int(report.fixed[ring.NUM_SAMPLING]),
        asked_draft_tokens=int(report.fixed[ring.ASKED_DRAFT_TOKENS]),
        context_tokens=int(report.fixed[ring.CONTEXT_TOKENS]),
        draft_ms=float(floats[ring.DRAFT_MS_BITS]),
        verify_ms=float(floats[ring.VERIFY_MS_BITS]),
        slot_id=_column(report.slot_id[:num_rows], _UINT32),
        generation=_column(report.generation[:num_rows], _UINT32),
        num_verified=_column(report.num_verified[:num_rows], _UINT32),
        num_accepted=_column(report.num_accepted[:num_rows], _UINT32),
        teaches=_column(report.teaches[:num_rows], _UINT8),
    )


def unpack_report(message: pb.InlineReport, report: ring.ReportArrays) -> bool:
    """Fill `report`, all but its index; False as of `unpack_request`."""
    fixed = (
        (ring.STEP_ID, message.step_id),
        (ring.NUM_TOKENS, message.num_tokens),
        (ring.PADDED_NUM_TOKENS, message.padded_num_tokens),
        (ring.NUM_PREFILL_TOKENS, message.num_prefill_tokens),
        (ring.NUM_SAMPLING, message.num_sampling),
        (ring.ASKED_DRAFT_TOKENS, message.asked_draft_tokens),
        (ring.CONTEXT_TOKENS, message.context_tokens),
    )
    columns = (
        (message.slot_id, _UINT32, report.slot_id),
        (message.generation, _UINT32, report.generation),
        (message.num_verified, _UINT32, report.num_verified),
        (message.num_accepted, _UINT32, report.num_accepted),
        (message.teaches, _UINT8, report.teaches),
    )
    num_rows = len(message.slot_id) // _UINT32.itemsize
    if not (_fill_fixed(fixed, report.fixed) and _fill_columns(columns, num_rows)):
        return False
    floats = report.fixed.view(np.float64)
    floats[ring.DRAFT_MS_BITS] = message.draft_ms
    floats[ring.VERIFY_MS_BITS] = message.verify_ms
    report.fixed[ring.NUM_ROWS] = num_rows
    return True


# ===================== Decision =====================


def pack_decision(decision: StepDecision) -> pb.InlineDecision:
    """The message of a decision."""
    has_cap = decision.max_verify_len != NO_BUDGET_CAP
    return pb.InlineDecision(
        step_id=decision.step_id,
        source_step_id=decision.source_step_id,
        epoch=decision.epoch,
        budget=decision.budget,
        max_verify_len=decision.max_verify_len if has_cap else None,
        next_draft_tokens=decision.next_draft_tokens,
        expected_tokens=decision.expected_tokens,
        expected_ms=decision.expected_ms,
        policy_id=decision.policy_id,
        model_state=plan_pb2.ModelState.ValueType(decision.model_state),
        flags=decision.flags,
        num_repaired_confidences=decision.num_repaired_confidences,
        fairness=decision.fairness,
    )


def unpack_decision(
    message: pb.InlineDecision, received_ns: int, words: npt.NDArray[np.int64]
) -> bool:
    """Fill `words`, int64 [DECISION_WORDS]. False if a number is above 2^63 - 1.

    received_ns: CLOCK_MONOTONIC of this host, in the place of the time it was decided at.
    """
    has_cap = message.HasField("max_verify_len")
    fixed = (
        (lane.STEP_ID, message.step_id),
        (lane.SOURCE_STEP_ID, message.source_step_id),
        (lane.EPOCH, message.epoch),
        (lane.BUDGET, message.budget),
        (lane.MAX_VERIFY_LEN, message.max_verify_len if has_cap else NO_BUDGET_CAP),
        (lane.NEXT_DRAFT_TOKENS, message.next_draft_tokens),
        (lane.POLICY_ID, message.policy_id),
        (lane.MODEL_STATE, message.model_state),
        (lane.FLAGS, message.flags),
        (lane.NUM_REPAIRED, message.num_repaired_confidences),
        (lane.DECIDED_NS, received_ns),
    )
    if not _fill_fixed(fixed, words):
        return False
    floats = words.view(np.float64)
    floats[lane.EXPECTED_TOKENS_BITS] = message.expected_tokens
    floats[lane.EXPECTED_MS_BITS] = message.expected_ms
    floats[lane.FAIRNESS_BITS] = message.fairness
    return True


# ===================== Columns =====================

_Fixed = tuple[tuple[int, int], ...]
_Columns = tuple[tuple[bytes, "np.dtype[np.generic]", npt.NDArray[np.generic]], ...]


def _column(values: npt.NDArray[np.generic], dtype: np.dtype[np.generic]) -> bytes:
    return values.astype(dtype, copy=False).tobytes()


def _fill_fixed(values: _Fixed, out: npt.NDArray[np.int64]) -> bool:
    if any(value > _MAX_INT64 for _, value in values):
        return False
    for word, value in values:
        out[word] = value
    return True


def _fill_columns(columns: _Columns, num_rows: int) -> bool:
    """Copy each column into the first `num_rows` rows of its array, if all have just these."""
    for data, dtype, out in columns:
        room = out[:num_rows]
        if len(room) != num_rows or len(data) != room.size * dtype.itemsize:
            return False
    for data, dtype, out in columns:
        room = out[:num_rows]
        room[...] = np.frombuffer(data, dtype=dtype).reshape(room.shape)
    return True
