"""From the engine's records to the shared region, in one compiled call each.

The records are copied into arrays of fixed type first, so that no unusual dtype, stride or
read-only flag of the caller makes numba compile in the middle of a step. The compiled functions
keep the GIL on purpose: they take microseconds, and to get it back from a busy thread takes
milliseconds.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numba import types
from specsched_protocol.compiling import njit
from specsched_protocol.plan import ConfidenceRows, PlanRequest, StepReport
from specsched_protocol.shm import plan_arrays as plan
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.plan_area import (
    are_valid_confidences,
    is_valid_request,
    publish_request,
    write_confidences,
)

__all__ = ["publish_report", "publish_step", "stage_report", "stage_request", "stage_rows"]

_write: Any = types.ExternalFunction("write", types.intp(types.intc, types.uintp, types.uintp))
_EVENT_BYTES = 8


def stage_rows(rows: ConfidenceRows | None, out: plan.ConfidenceArrays) -> bool:
    """Copy `rows` into `out`, all but its index; False if their number does not fit or agree."""
    if rows is None:
        out.fixed[plan.ROWS_NUM_ROWS] = 0
        return True
    num_rows = len(rows.slot_id)
    columns = (rows.generation, rows.num_draft_tokens, rows.confidence)
    if num_rows > len(out.slot_id) or any(len(column) != num_rows for column in columns):
        return False
    if rows.confidence.shape[1:] != out.confidence.shape[1:]:
        return False
    out.fixed[plan.ROWS_SOURCE_STEP_ID] = rows.source_step_id
    out.fixed[plan.ROWS_NUM_ROWS] = num_rows
    out.slot_id[:num_rows] = rows.slot_id
    out.generation[:num_rows] = rows.generation
    out.num_draft_tokens[:num_rows] = rows.num_draft_tokens
    out.confidence[:num_rows] = rows.confidence
    return True


def stage_request(request: PlanRequest, out: plan.RequestArrays) -> bool:
    """Copy `request` into `out`, all but the indices; False if its rows do not fit or agree."""
    num_rows = len(request.slot_id)
    columns = (
        (request.slot_id, out.slot_id),
        (request.generation, out.generation),
        (request.num_draft_tokens, out.num_draft_tokens),
        (request.samples, out.samples),
        (request.weight, out.weight),
        (request.context_tokens, out.context_tokens),
        (request.is_greedy, out.is_greedy),
    )
    if num_rows > len(out.slot_id) or any(len(source) != num_rows for source, _ in columns):
        return False
    for source, target in columns:
        target[:num_rows] = source
    out.fixed[plan.STEP_ID] = request.step_id
    out.fixed[plan.SOURCE_STEP_ID] = request.source_step_id
    out.fixed[plan.NUM_OTHER_TOKENS] = request.num_other_tokens
    out.fixed[plan.NUM_PREFILL_TOKENS] = request.num_prefill_tokens
    out.fixed[plan.MAX_BUDGET] = request.max_budget
    out.fixed[plan.NUM_REQUESTS] = num_rows
    out.fixed[plan.PUBLISHED_NS] = time.monotonic_ns()
    return True


def stage_report(report: StepReport, out: ring.ReportArrays) -> bool:
    """Copy `report` into `out`, all but its index; False if its rows do not fit or agree."""
    num_rows = len(report.slot_id)
    columns = (
        (report.slot_id, out.slot_id),
        (report.generation, out.generation),
        (report.num_verified, out.num_verified),
        (report.num_accepted, out.num_accepted),
        (report.teaches, out.teaches),
    )
    if num_rows > len(out.slot_id) or any(len(source) != num_rows for source, _ in columns):
        return False
    for source, target in columns:
        target[:num_rows] = source
    floats = out.fixed.view(np.float64)
    out.fixed[ring.STEP_ID] = report.step_id
    out.fixed[ring.NUM_TOKENS] = report.num_tokens
    out.fixed[ring.PADDED_NUM_TOKENS] = report.padded_num_tokens
    out.fixed[ring.NUM_PREFILL_TOKENS] = report.num_prefill_tokens
    out.fixed[ring.NUM_SAMPLING] = report.num_sampling
    out.fixed[ring.ASKED_DRAFT_TOKENS] = report.asked_draft_tokens
    out.fixed[ring.CONTEXT_TOKENS] = report.context_tokens
    floats[ring.DRAFT_MS_BITS] = report.draft_ms
    floats[ring.VERIFY_MS_BITS] = report.verify_ms
    out.fixed[ring.NUM_ROWS] = num_rows
    return True


@njit(cache=True)
def publish_step(words: Any, layout: Any, rows: Any, request: Any, doorbells: Any) -> Any:
    """Publish staged confidences, if there are any, and the staged request; ring every doorbell.

    Gives both the next index of their kind. False, and nothing published, if a value is out of
    range. doorbells: int64 [n], non-blocking eventfds; one that cannot be rung is skipped.
    """
    if not (are_valid_confidences(layout, rows) and is_valid_request(layout, request)):
        return False
    if rows.fixed[plan.ROWS_NUM_ROWS] > 0:
        rows.fixed[plan.ROWS_INDEX] += 1
        write_confidences(words, layout, rows)
    request.fixed[plan.CONFIDENCE_INDEX] = rows.fixed[plan.ROWS_INDEX]
    request.fixed[plan.PUBLICATION] += 1
    publish_request(words, layout, request)
    one = np.ones(1, dtype=np.int64)
    for doorbell in doorbells:
        _write(types.intc(doorbell), types.uintp(one.ctypes.data), types.uintp(_EVENT_BYTES))
    return True


@njit(cache=True)
def publish_report(words: Any, layout: Any, report: Any) -> Any:
    """Publish a staged report under the next index; False if a value is out of range."""
    if not ring.is_valid_report(layout, report):
        return False
    report.fixed[ring.INDEX] += 1
    ring.write_report(words, layout, report)
    return True
