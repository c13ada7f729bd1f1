"""Reports of finished steps, from the executor's ring."""

from __future__ import annotations

import numpy as np
from specsched_protocol.plan import StepReport
from specsched_protocol.shm import ExecutorRegion
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.seqlock import OK

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
        self._arrays = ring.new_report_arrays(region.layout)
        # What finished before this reader came is nobody's loss.
        self._last = int(ring.latest_report(region.words, region.layout))

    def drain(self) -> list[StepReport]:
        """Reports that came since the last call, oldest first."""
        region = self._region
        latest = int(ring.latest_report(region.words, region.layout))
        self._last = min(self._last, latest)  # a head that went back: no sound executor's
        first = max(self._last + 1, latest - region.layout.num_report_slots + 1)
        self.num_lost += first - (self._last + 1)
        self._last = latest
        reports = [self._read(index) for index in range(first, latest + 1)]
        found = [report for report in reports if report is not None]
        self.num_reports += len(found)
        self.num_lost += len(reports) - len(found)
        return found

    def _read(self, index: int) -> StepReport | None:
        region, arrays = self._region, self._arrays
        status = ring.read_report(region.words, region.layout, index, _MAX_TRIES, arrays)
        if status != OK:
            return None
        floats = arrays.fixed.view(np.float64)
        num_rows = int(arrays.fixed[ring.NUM_ROWS])
        return StepReport(
            step_id=int(arrays.fixed[ring.STEP_ID]),
            num_tokens=int(arrays.fixed[ring.NUM_TOKENS]),
            padded_num_tokens=int(arrays.fixed[ring.PADDED_NUM_TOKENS]),
            num_prefill_tokens=int(arrays.fixed[ring.NUM_PREFILL_TOKENS]),
            num_sampling=int(arrays.fixed[ring.NUM_SAMPLING]),
            asked_draft_tokens=int(arrays.fixed[ring.ASKED_DRAFT_TOKENS]),
            context_tokens=int(arrays.fixed[ring.CONTEXT_TOKENS]),
            draft_ms=float(floats[ring.DRAFT_MS_BITS]),
            verify_ms=float(floats[ring.VERIFY_MS_BITS]),
            slot_id=arrays.slot_id[:num_rows].copy(),
            generation=arrays.generation[:num_rows].copy(),
            num_verified=arrays.num_verified[:num_rows].copy(),
            num_accepted=arrays.num_accepted[:num_rows].copy(),
            teaches=arrays.teaches[:num_rows].copy(),
        )
