"""Writers and readers of the stress test, compiled; run as a program it is the other process."""

from __future__ import annotations

import sys

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.descriptors import OwnedDescriptor
from specsched_protocol.shm import lane, open_lane_region, plan_arrays, report_ring
from specsched_protocol.shm.atomics import load_acquire, load_relaxed, store_release
from specsched_protocol.shm.layout import (
    DECISION_WORDS,
    LANE_DECISION,
    REPORT_FIXED_WORDS,
    REQUEST_FIXED_WORDS,
)
from specsched_protocol.shm.plan_area import (
    _load_confidence_row,
    _load_request,
    latest_publication,
    publish_request,
    read_confidences,
    read_request,
    write_confidences,
)
from specsched_protocol.shm.report_ring import _load_report, read_report, write_report
from specsched_protocol.shm.seqlock import OK, TORN

ACCEPTED, TORN_ACCEPTED, RETRIED = 0, 1, 2
ROWS = 8
K = 4


# ===================== Decisions =====================


@njit(cache=True, nogil=True)
def write_decisions(words, count, stop):
    """Word i of decision n is n + i."""
    decision = np.zeros(DECISION_WORDS, dtype=np.int64)
    for n in range(1, count + 1):
        for i in range(DECISION_WORDS):
            decision[i] = n + i
        lane.write_decision(words, n, decision)
    store_release(stop, 0, 1)


@njit(cache=True, nogil=True)
def read_decisions(words, is_checked, stop, counts):
    """Read the decision that lies in buffer 0, whatever its number, until told to stop."""
    decision = np.zeros(DECISION_WORDS, dtype=np.int64)
    while load_acquire(stop, 0) == 0:
        if is_checked:
            expected = load_relaxed(words, LANE_DECISION + 1)
            status = lane.read_decision(words, expected, 1, decision)
            counts[RETRIED] += status == TORN
            if status != OK:
                continue
        else:
            for i in range(DECISION_WORDS):
                decision[i] = load_relaxed(words, LANE_DECISION + 1 + i)
            if decision[0] == 0:
                continue
        counts[ACCEPTED] += 1
        for i in range(DECISION_WORDS):
            if decision[i] != decision[0] + i:
                counts[TORN_ACCEPTED] += 1
                break


# ===================== Requests and confidences =====================


@njit(cache=True, nogil=True)
def _fill_request(request, n):
    for i in range(REQUEST_FIXED_WORDS):
        request.fixed[i] = 0
    request.fixed[plan_arrays.PUBLICATION] = n
    request.fixed[plan_arrays.STEP_ID] = n + 2
    request.fixed[plan_arrays.SOURCE_STEP_ID] = n
    request.fixed[plan_arrays.NUM_OTHER_TOKENS] = n
    request.fixed[plan_arrays.NUM_REQUESTS] = ROWS
    request.fixed[plan_arrays.CONFIDENCE_INDEX] = n
    for row in range(ROWS):
        request.slot_id[row] = (n + row) % ROWS
        request.generation[row] = n + row
        request.num_draft_tokens[row] = n % (K + 1)
        request.samples[row] = True
        request.weight[row] = n % 1024
        request.context_tokens[row] = n + row
        request.is_greedy[row] = n % 2 == 1


@njit(cache=True, nogil=True)
def write_steps(words, layout, count, stop):
    """Publication n: every field of every row follows from n."""
    request = plan_arrays.RequestArrays(
        np.zeros(REQUEST_FIXED_WORDS, dtype=np.int64),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.bool_),
        np.zeros(ROWS, dtype=np.float32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.bool_),
    )
    rows = plan_arrays.ConfidenceArrays(
        np.zeros(3, dtype=np.int64),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros((ROWS, K), dtype=np.float32),
    )
    for n in range(1, count + 1):
        _fill_request(request, n)
        rows.fixed[0], rows.fixed[1], rows.fixed[2] = n, n, ROWS
        for row in range(ROWS):
            rows.slot_id[row] = request.slot_id[row]
            rows.generation[row] = request.generation[row]
            rows.num_draft_tokens[row] = K
            for position in range(K):
                rows.confidence[row, position] = (n + row + position) % 4096
        write_confidences(words, layout, rows)
        publish_request(words, layout, request)
    store_release(stop, 0, 1)


@njit(cache=True, nogil=True)
def _is_whole_request(request):
    n = request.fixed[plan_arrays.PUBLICATION]
    is_whole = request.fixed[plan_arrays.STEP_ID] == n + 2
    is_whole &= request.fixed[plan_arrays.SOURCE_STEP_ID] == n
    is_whole &= request.fixed[plan_arrays.CONFIDENCE_INDEX] == n
    for row in range(ROWS):
        is_whole &= np.int64(request.slot_id[row]) == (n + row) % ROWS
        is_whole &= np.int64(request.generation[row]) == n + row
        is_whole &= np.int64(request.num_draft_tokens[row]) == n % (K + 1)
        is_whole &= np.int64(request.weight[row]) == n % 1024
        is_whole &= np.int64(request.context_tokens[row]) == n + row
        is_whole &= request.is_greedy[row] == (n % 2 == 1)
    return is_whole


@njit(cache=True, nogil=True)
def _is_whole_gathering(request, gathered):
    n = request.fixed[plan_arrays.PUBLICATION]
    is_whole = True
    for row in range(ROWS):
        is_whole &= gathered.num_valid[row] == K
        for position in range(K):
            is_whole &= gathered.confidence[row, position] == (n + row + position) % 4096
    return is_whole


@njit(cache=True, nogil=True)
def read_steps(words, layout, is_checked, stop, counts):
    """Read the newest request and its confidences as the planner does, or without the check."""
    request = plan_arrays.RequestArrays(
        np.zeros(REQUEST_FIXED_WORDS, dtype=np.int64),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.bool_),
        np.zeros(ROWS, dtype=np.float32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.bool_),
    )
    gathered = plan_arrays.GatheredConfidences(
        np.zeros(ROWS, dtype=np.int64), np.zeros((ROWS, K), dtype=np.float32)
    )
    while load_acquire(stop, 0) == 0:
        publication = latest_publication(words, layout)
        if publication == 0:
            continue
        if is_checked:
            status = read_request(words, layout, publication, 1, request)
            if status == OK:
                counts[ACCEPTED] += 1
                counts[TORN_ACCEPTED] += not _is_whole_request(request)
                status = read_confidences(words, layout, request, 1, gathered)
                if status == OK:
                    counts[ACCEPTED] += 1
                    counts[TORN_ACCEPTED] += not _is_whole_gathering(request, gathered)
            counts[RETRIED] += status == TORN
            continue
        base = layout.request + (publication % 2) * layout.request_stride
        _load_request(words, layout, base, request)
        counts[ACCEPTED] += 1
        counts[TORN_ACCEPTED] += not _is_whole_request(request)
        _fill_request(request, publication)
        base = layout.confidence + (publication % 2) * layout.confidence_stride
        for row in range(ROWS):
            _load_confidence_row(words, layout, base, request, row, gathered)
        counts[ACCEPTED] += 1
        counts[TORN_ACCEPTED] += not _is_whole_gathering(request, gathered)


# ===================== Reports =====================


@njit(cache=True, nogil=True)
def _new_report():
    return report_ring.ReportArrays(
        np.zeros(REPORT_FIXED_WORDS, dtype=np.int64),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.uint32),
        np.zeros(ROWS, dtype=np.bool_),
    )


@njit(cache=True, nogil=True)
def write_reports(words, layout, count, stop):
    """Report n: every field of every row follows from n."""
    report = _new_report()
    for n in range(1, count + 1):
        for i in range(REPORT_FIXED_WORDS):
            report.fixed[i] = n + i
        report.fixed[report_ring.NUM_ROWS] = ROWS
        report.fixed[report_ring.NUM_PREFILL_TOKENS] = n
        report.fixed[report_ring.NUM_SAMPLING] = n % (ROWS + 1)
        report.fixed[report_ring.ASKED_DRAFT_TOKENS] = n % (K + 1)
        for row in range(ROWS):
            report.slot_id[row] = (n + row) % ROWS
            report.generation[row] = n + row
            report.num_verified[row] = K
            report.num_accepted[row] = n % (K + 1)
            report.teaches[row] = n % 2 == 1
        write_report(words, layout, report)
    store_release(stop, 0, 1)


@njit(cache=True, nogil=True)
def _is_whole_report(report):
    n = report.fixed[report_ring.INDEX]
    is_whole = True
    for i in range(report_ring.NUM_ROWS):
        is_whole &= report.fixed[i] == n + i
    is_whole &= report.fixed[report_ring.NUM_PREFILL_TOKENS] == n
    is_whole &= report.fixed[report_ring.NUM_SAMPLING] == n % (ROWS + 1)
    is_whole &= report.fixed[report_ring.ASKED_DRAFT_TOKENS] == n % (K + 1)
    for row in range(ROWS):
        is_whole &= np.int64(report.slot_id[row]) == (n + row) % ROWS
        is_whole &= np.int64(report.generation[row]) == n + row
        is_whole &= np.int64(report.num_accepted[row]) == n % (K + 1)
        is_whole &= report.teaches[row] == (n % 2 == 1)
    return is_whole


@njit(cache=True, nogil=True)
def read_reports(words, layout, is_checked, stop, counts):
    """Read the slot that is written next, where the writer is met soonest."""
    report = _new_report()
    while load_acquire(stop, 0) == 0:
        index = load_acquire(words, layout.report_head) + 1
        if index <= layout.num_report_slots:
            continue
        old = index - layout.num_report_slots
        if is_checked:
            status = read_report(words, layout, old, 1, report)
            counts[RETRIED] += status == TORN
            if status != OK:
                continue
        else:
            base = layout.report + (old % layout.num_report_slots) * layout.report_stride
            _load_report(words, layout, base, report)
        counts[ACCEPTED] += 1
        counts[TORN_ACCEPTED] += not _is_whole_report(report)


def main(fd: int, count: int) -> None:
    """Write `count` decisions to the lane behind `fd`."""
    words = open_lane_region(OwnedDescriptor(fd), bytes(16), lane=0, epoch=1).words
    write_decisions(words, count, np.zeros(1, dtype=np.int64))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
