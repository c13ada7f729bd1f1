"""Reports of finished steps: a ring the executor writes and never waits for.

Report n (1, 2, ...) lies in slot n % num_report_slots under that slot's own sequence lock. A reader
that falls more than a ring behind loses the oldest and counts them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specsched_protocol.compiling import njit
from specsched_protocol.shm.atomics import (
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from specsched_protocol.shm.layout import REPORT_FIXED_WORDS, REPORT_ROW_WORDS, ExecutorLayout
from specsched_protocol.shm.seqlock import (
    EMPTY,
    INVALID,
    OK,
    TORN,
    begin_read,
    begin_write,
    end_read,
    end_write,
)

__all__ = [
    "ASKED_DRAFT_TOKENS",
    "CONTEXT_TOKENS",
    "DRAFT_MS_BITS",
    "INDEX",
    "NUM_PREFILL_TOKENS",
    "NUM_ROWS",
    "NUM_SAMPLING",
    "NUM_TOKENS",
    "PADDED_NUM_TOKENS",
    "STEP_ID",
    "VERIFY_MS_BITS",
    "ReportArrays",
    "is_valid_report",
    "latest_report",
    "new_report_arrays",
    "read_report",
    "write_report",
]

# Fixed words of a report, in order.
INDEX = 0
STEP_ID = 1
NUM_TOKENS = 2
PADDED_NUM_TOKENS = 3
CONTEXT_TOKENS = 4
DRAFT_MS_BITS = 5
VERIFY_MS_BITS = 6
NUM_ROWS = 7
NUM_PREFILL_TOKENS = 8
NUM_SAMPLING = 9
ASKED_DRAFT_TOKENS = 10

_LOW = 0xFFFF_FFFF
_MAX_ACCEPTED = 0xFFFF
_TEACHES_BIT = 62


class ReportArrays(NamedTuple):
    """A report of fixed[NUM_ROWS] rows outside of the region. fixed: int64 [11]; the rest [R].

    See specsched_protocol.plan.StepReport; fixed[INDEX] = 1, 2, ... counts reports.
    """

    fixed: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_verified: npt.NDArray[np.uint32]
    num_accepted: npt.NDArray[np.uint32]
    teaches: npt.NDArray[np.bool_]


def new_report_arrays(layout: ExecutorLayout) -> ReportArrays:
    """Room for any report of a region."""

    def counts() -> npt.NDArray[np.uint32]:
        return np.zeros(layout.max_requests, dtype=np.uint32)

    fixed = np.zeros(REPORT_FIXED_WORDS, dtype=np.int64)
    teaches = np.zeros(layout.max_requests, dtype=np.bool_)
    return ReportArrays(fixed, counts(), counts(), counts(), counts(), teaches)


@njit(cache=True, nogil=True)
def write_report(words: Any, layout: Any, report: Any) -> None:
    """Publish `report`, ReportArrays whose values the caller has checked."""
    index = report.fixed[INDEX]
    base = layout.report + (index % layout.num_report_slots) * layout.report_stride
    odd = begin_write(words, base)
    for i in range(REPORT_FIXED_WORDS):
        store_relaxed(words, base + 1 + i, report.fixed[i])
    for row in range(report.fixed[NUM_ROWS]):
        at = base + 1 + REPORT_FIXED_WORDS + row * REPORT_ROW_WORDS
        generation = np.int64(report.generation[row]) << 32
        store_relaxed(words, at, np.int64(report.slot_id[row]) | generation)
        accepted = np.int64(report.num_accepted[row]) << 32
        teaches = np.int64(report.teaches[row]) << _TEACHES_BIT
        store_relaxed(words, at + 1, np.int64(report.num_verified[row]) | accepted | teaches)
    end_write(words, base, odd)
    store_release(words, layout.report_head, index)


@njit(cache=True, nogil=True)
def latest_report(words: Any, layout: Any) -> Any:
    """Index of the newest report, 0 before the first."""
    return load_acquire(words, layout.report_head)


@njit(cache=True, nogil=True)
def read_report(words: Any, layout: Any, index: int, max_tries: int, out: Any) -> int:
    """Copy report `index` into `out`, ReportArrays of max_requests rows.

    Returns OK; EMPTY if another report lies there (overwritten); TORN after `max_tries`; INVALID if
    a count or an index is out of range. Only after OK is `out`, up to fixed[NUM_ROWS], good.
    """
    base = layout.report + (index % layout.num_report_slots) * layout.report_stride
    for _ in range(max_tries):
        begun = begin_read(words, base)
        _load_report(words, layout, base, out)
        if end_read(words, base, begun):
            if out.fixed[INDEX] != index:
                return EMPTY
            return OK if is_valid_report(layout, out) else INVALID
    return TORN


@njit(cache=True, nogil=True)
def _load_report(words: Any, layout: Any, base: int, out: Any) -> None:
    for i in range(REPORT_FIXED_WORDS):
        out.fixed[i] = load_relaxed(words, base + 1 + i)
    # A torn count must not lead out of the block.
    for row in range(min(max(out.fixed[NUM_ROWS], 0), layout.max_requests)):
        at = base + 1 + REPORT_FIXED_WORDS + row * REPORT_ROW_WORDS
        word = load_relaxed(words, at)
        out.slot_id[row] = word & _LOW
        out.generation[row] = (word >> 32) & _LOW
        word = load_relaxed(words, at + 1)
        out.num_verified[row] = word & _LOW
        out.num_accepted[row] = (word >> 32) & _MAX_ACCEPTED
        out.teaches[row] = (word >> _TEACHES_BIT) & 1


@njit(cache=True, nogil=True)
def is_valid_report(layout: Any, report: Any) -> Any:
    """Whether every count and index of `report`, ReportArrays, is in range. For both ends."""
    num_rows = report.fixed[NUM_ROWS]
    is_valid = 0 <= num_rows <= layout.max_requests
    is_valid &= 0 <= report.fixed[NUM_SAMPLING] <= num_rows
    is_valid &= 0 <= report.fixed[NUM_PREFILL_TOKENS] <= report.fixed[NUM_TOKENS]
    is_valid &= 0 <= report.fixed[ASKED_DRAFT_TOKENS] <= layout.max_draft_tokens
    for row in range(num_rows if is_valid else 0):
        is_valid &= np.int64(report.slot_id[row]) < layout.max_requests
        is_valid &= np.int64(report.num_verified[row]) <= layout.max_draft_tokens
        is_valid &= report.num_accepted[row] <= report.num_verified[row]
    return is_valid
