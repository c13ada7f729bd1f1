"""Building an executor, and leaving while it is built."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import structlog
from specsched_protocol.ending import EndSignal

__all__ = ["build_unless_told_to_end"]

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_LEAVE_TIMEOUT_S: Final = 1.0


def build_unless_told_to_end(
    build: Callable[[], T], end: EndSignal, *, discard: Callable[[T], object]
) -> T | None:
    """What `build` returns or raises; None if the signal came first.

    To load, to compile and to measure are long calls of native code, which nothing interrupts. So
    `build` has a thread of its own, which is left to itself once the signal came; what it still
    makes within a second is given to `discard`.
    """
    result: Future[T] = Future()
    news: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may interrupt its get

    def run() -> None:
        try:
            result.set_result(build())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            result.set_exception(error)
        news.put(None)

    builder = threading.Thread(target=run, name="start-up", daemon=True)
    end.tell(lambda: news.put(None))
    builder.start()
    news.get()
    if not end.has_come:
        return result.result()
    _log.info("ending", told="while it loaded, compiled or measured")
    builder.join(_LEAVE_TIMEOUT_S)
    if result.done() and result.exception() is None:
        discard(result.result())
    return None
