"""Goes on with a trace once there is room on the disk again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from .seam import TraceConfig
from .writer import TraceWriter

__all__ = ["RetryingWriter"]

_log = structlog.get_logger(__name__)

_RETRY_S = 10.0


class RetryingWriter:
    """As TraceWriter, but what cannot be written is left out and counted in `num_lost`.

    After a failure the steps of the next `_RETRY_S` are left out, then a new file is begun. A
    failure is logged unless none has been overcome since the last one.
    """

    def __init__(
        self, config: TraceConfig, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_lost = 0
        self._clock = clock
        self._writer = TraceWriter(config, name, clock)
        self._retry_s: float | None = None
        self._num_ended_when_told = -1

    @property
    def due_in_s(self) -> float | None:
        """See TraceWriter."""
        return self._writer.due_in_s

    def describe(self, metadata: Mapping[str, str]) -> None:
        """See TraceWriter."""
        self._attempt(lambda: self._writer.describe(metadata))

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See TraceWriter."""
        if self._retry_s is not None and self._clock() < self._retry_s:
            self.num_lost += len(rows)
            return
        self._retry_s = None
        self._attempt(lambda: self._writer.write(rows))

    def close_if_due(self) -> None:
        """See TraceWriter."""
        self._attempt(self._writer.close_if_due)

    def close(self) -> None:
        """See TraceWriter."""
        self._attempt(self._writer.close)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, ValueError) as error:  # a full disk; deciding goes on
            self.num_lost += self._writer.abandon()
            self._retry_s = self._clock() + _RETRY_S
            if self._num_ended_when_told != self._writer.num_ended:
                self._num_ended_when_told = self._writer.num_ended
                _log.warning("trace interrupted", reason=str(error), retry_s=_RETRY_S)
