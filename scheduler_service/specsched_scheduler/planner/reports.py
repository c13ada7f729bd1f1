"""Reports of finished steps, from the executor's ring."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.shm import ExecutorRegion
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.layout import REPORT_FIXED_WORDS, ExecutorLayout
from specsched_protocol.shm.report_ring import NUM_ROWS, read_report
from specsched_protocol.shm.seqlock import OK

from specsched_scheduler.decision.finished import FinishedSteps

__all__ = ["ReportReader"]

_MAX_TRIES = 8


class ReportReader:
    """Reads each report at most once. One thread.

    num_reports: read so far. num_lost: overwritten before they were read, or not readable.
    """

    def __init__(self, region: ExecutorRegion) -> None:
        self.num_reports = 0
        self.num_lost = 0
        self._region = region
        self._one = ring.new_report_arrays(region.layout)
        self._all = _room_for_all(region.layout)
        # What finished before this reader came is nobody's loss.
        self._last = int(ring.latest_report(region.words, region.layout))

    def drain(self) -> FinishedSteps:
        """Reports that came since the last call."""
        region = self._region
        latest = int(ring.latest_report(region.words, region.layout))
        self._last = min(self._last, latest)  # a head that went back: no sound executor's
        first = max(self._last + 1, latest - region.layout.num_report_slots + 1)
        num_waiting = latest + 1 - first
        self.num_lost += first - (self._last + 1)
        self._last = latest
        num_read = 0
        if num_waiting:
            num_read = int(
                _read_all(region.words, region.layout, first, num_waiting, self._one, self._all)
            )
        self.num_reports += num_read
        self.num_lost += num_waiting - num_read
        return self._copy(num_read)

    def _copy(self, num_steps: int) -> FinishedSteps:
        read = self._all
        rows = slice(int(read.row_begin[num_steps]))
        return FinishedSteps(
            words=read.words[:, :num_steps].copy(),
            row_begin=read.row_begin[: num_steps + 1].copy(),
            slot_id=read.slot_id[rows].copy(),
            generation=read.generation[rows].copy(),
            num_verified=read.num_verified[rows].copy(),
            num_accepted=read.num_accepted[rows].copy(),
            teaches=read.teaches[rows].copy(),
        )


def _room_for_all(layout: ExecutorLayout) -> FinishedSteps:
    num_steps = layout.num_report_slots
    num_rows = num_steps * layout.max_requests
    return FinishedSteps(
        words=np.zeros((REPORT_FIXED_WORDS, num_steps), dtype=np.int64),
        row_begin=np.zeros(num_steps + 1, dtype=np.int64),
        slot_id=np.zeros(num_rows, dtype=np.uint32),
        generation=np.zeros(num_rows, dtype=np.uint32),
        num_verified=np.zeros(num_rows, dtype=np.uint32),
        num_accepted=np.zeros(num_rows, dtype=np.uint32),
        teaches=np.zeros(num_rows, dtype=np.bool_),
    )


@njit(cache=True, nogil=True)
def _read_all(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    words: Any, layout: Any, first: int, num_waiting: int, one: Any, out: Any
) -> int:
    """Copy the reports that are good to `out`, FinishedSteps; returns how many. one: scratch."""
    num_read = 0
    end = 0
    for index in range(first, first + num_waiting):
        if read_report(words, layout, index, _MAX_TRIES, one) != OK:
            continue
        out.words[:, num_read] = one.fixed
        num_rows = one.fixed[NUM_ROWS]
        out.slot_id[end : end + num_rows] = one.slot_id[:num_rows]
        out.generation[end : end + num_rows] = one.generation[:num_rows]
        out.num_verified[end : end + num_rows] = one.num_verified[:num_rows]
        out.num_accepted[end : end + num_rows] = one.num_accepted[:num_rows]
        out.teaches[end : end + num_rows] = one.teaches[:num_rows]
        num_read += 1
        end += num_rows
        out.row_begin[num_read] = end
    return num_read
