"""Joins steps with their outcomes and has them written, on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from specsched_protocol.plan import StepReport
from specsched_protocol.recurring_failure import RecurringFailure

from specsched_scheduler.planner import TapedStep

from .retrying_writer import RetryingWriter
from .rows import to_row
from .seam import TraceConfig

__all__ = ["TraceRecorder"]

_MAX_WAITING_STEPS = 256
"""Steps kept for their report, which comes one step later or never."""
_MAX_BATCHES = 64

Item = tuple[str, Any]


class TraceRecorder:
    """`observe` and `describe` never wait: what the disk is too slow for is left out and counted.

    num_dropped: steps that were not recorded for want of room in the planner.
    """

    def __init__(self, config: TraceConfig, name: str) -> None:
        self._num_refused = 0
        self._num_faulty = 0
        self.num_dropped = 0
        self._queue: queue.Queue[Item | None] = queue.Queue(_MAX_BATCHES)
        self._waiting: dict[int, TapedStep] = {}
        self._writer = RetryingWriter(config, name)
        self._fault = RecurringFailure("steps not recorded")
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    @property
    def num_left_out(self) -> int:
        """Steps that were not recorded for want of room here or on the disk, or for a fault."""
        return self._num_refused + self._num_faulty + self._writer.num_lost

    def describe(self, metadata: Mapping[str, str]) -> None:
        """What the steps observed from now on were decided by."""
        self._put(("describe", dict(metadata)), 0)

    def observe(
        self, steps: Sequence[TapedStep], reports: Sequence[StepReport], num_dropped: int = 0
    ) -> None:
        """Steps that were decided, and outcomes of steps decided before."""
        self.num_dropped = num_dropped
        self._waiting |= {step.decision.decision.step_id: step for step in steps}
        joined = [
            (step, report)
            for report in reports
            if (step := self._waiting.pop(report.step_id, None)) is not None
        ]
        late: list[tuple[TapedStep, StepReport | None]] = []
        while len(self._waiting) > _MAX_WAITING_STEPS:
            late.append((self._waiting.pop(next(iter(self._waiting))), None))
        rows = [*late, *joined]
        if rows:
            self._put(("rows", rows), len(rows))

    def close(self) -> None:
        """Write what is left and end."""
        rest = [(step, None) for step in self._waiting.values()]
        self._waiting = {}
        if rest:
            self._put(("rows", rest), len(rest))
        self._queue.put(None)
        self._thread.join()

    def _put(self, item: Item, num_steps: int) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._num_refused += num_steps

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._take(item)
            except Exception as error:  # noqa: BLE001 - `close` waits for this thread
                self._fault.tell(error)
                self._num_faulty += len(item[1]) if item[0] == "rows" else 0
        self._writer.close()

    def _next(self) -> Item | None:
        """What comes next; meanwhile the writer ends its file when that is due."""
        while True:
            try:
                return self._queue.get(timeout=self._writer.due_in_s)
            except queue.Empty:
                self._writer.close_if_due()

    def _take(self, item: Item) -> None:
        kind, content = item
        if kind == "describe":
            self._writer.describe(content)
        else:
            self._writer.write([to_row(step, report) for step, report in content])
