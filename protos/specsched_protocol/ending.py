"""How a process is told to end, and ends. Leaf module: standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

__all__ = ["EndSignal", "end_process"]


class EndSignal:
    """SIGTERM or SIGINT, noticed from now on to the end of the process. For the main thread.

    The handler neither raises nor logs: an exception is lost where it meets a callback of a
    compiler, and a logger's lock may be held by the code that was interrupted.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._listener: Callable[[], object] | None = None
        # Not a loop's own handlers: they end with it, and a second signal would kill what ends.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def tell(self, listener: Callable[[], object]) -> None:
        """Have `listener` called, instead of the one before; at once if the signal came already.

        It is called from the handler, so it must not take a lock that the main thread may hold.
        """
        self._listener = listener
        if self.has_come:
            listener()

    def _take(self, *_: object) -> None:
        self.has_come = True
        if self._listener is not None:
            self._listener()


def end_process(status: int) -> NoReturn:
    """Exit with `status` at once, whatever other threads are doing.

    A thread in native code (a compiler, a matrix product) can neither be told to stop nor be waited
    for, and the interpreter's own finalization would take the libraries away under it. So this is
    the last call of a process: sockets and files are closed by then, only the output is flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it may be gone
            stream.flush()
    os._exit(status)
