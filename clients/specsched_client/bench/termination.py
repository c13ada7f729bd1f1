"""A measurement that is told to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["sigterm_as_ctrl_c"]


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Have SIGTERM end what runs like Ctrl-C does, so that it tidies up. In the main thread."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
