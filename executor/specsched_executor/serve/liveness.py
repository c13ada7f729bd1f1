"""Whether the engine advances: what /livez and the watchdog of a supervisor go by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["EngineWatch"]

_PERIOD_S: Final = 1.0


class _Stats(Protocol):
    @property
    def num_steps(self) -> int: ...
    @property
    def num_running_requests(self) -> int: ...
    @property
    def num_waiting_requests(self) -> int: ...


class EngineWatch:
    """Looks once a second whether an engine that has requests completes steps.

    is_running: whether its thread lives. stall_after_s: time in which it completes one step at
    least; a GPU that hangs, or a deadlock, completes none.
    """

    def __init__(
        self,
        stats: Callable[[], _Stats],
        is_running: Callable[[], bool],
        stall_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats, self._is_running = stats, is_running
        self._stall_after_s = stall_after_s
        self._clock = clock
        self._num_steps = -1
        self._since = clock()

    async def run(self) -> None:
        """Look again and again; never returns."""
        while True:
            self.look()
            await asyncio.sleep(_PERIOD_S)

    def look(self) -> None:
        """Note whether there was a step, or nothing to do, since the last look."""
        stats = self._stats()
        is_idle = stats.num_running_requests == stats.num_waiting_requests == 0
        if is_idle or stats.num_steps != self._num_steps:
            self._num_steps, self._since = stats.num_steps, self._clock()

    def not_alive(self) -> str | None:
        """Why only a new process could serve; None: nothing is wrong."""
        if not self._is_running():
            return "the engine has ended"
        self.look()
        stalled_s = self._clock() - self._since
        if stalled_s >= self._stall_after_s:
            return f"the engine has requests and completed no step for {stalled_s:.0f} s"
        return None
