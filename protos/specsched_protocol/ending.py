"""How a process is told to end, and ends. Leaf module: standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, NoReturn

__all__ = ["END_SIGNALS", "EndSignal", "end_process", "leaving_when_told", "signals_blocked"]

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def leaving_when_told(
    status: int, signals: Collection[signal.Signals] = END_SIGNALS
) -> Iterator[None]:
    """Have `signals` end the process at once with `status`, without a word.

    For the time in which a program is imported: an exception would become a traceback there, or be
    lost. Signals that are ignored stay so. What was blocked until now, as it is across
    `execv`, comes now. Nothing is done in another thread than the main one, which cannot.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(status))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block END_SIGNALS in this thread, and in processes that are begun here, for good in them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EndSignal:
    """SIGTERM or SIGINT, noticed from now on to the end of the process. For the main thread.

    The handler neither raises nor logs: an exception is lost where it meets a callback of a
    compiler, and a logger's lock may be held by the code that was interrupted.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._listener: Callable[[], object] | None = None
        # Not a loop's own handlers: they end with it, and a second signal would kill what ends.
        for number in END_SIGNALS:
            signal.signal(number, self._take)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)  # blocked, maybe, by who began it

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
