"""A measurement that is told to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["sigterm_as_ctrl_c"]


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Have SIGTERM end what runs like Ctrl-C does, so that it tidies up. In the main thread.

    Ctrl-C counts then even where it was ignored, as shells have their background jobs do.
    """
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    was_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if was_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if was_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, previous)
