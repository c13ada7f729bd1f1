"""Progress of the start-up: drawn for a person on a terminal, told now and then in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from rich.console import Console
from rich.progress import Progress

__all__ = ["progress_bar", "status"]

_TELL_AGAIN_S: Final = 30.0

_console = Console(stderr=True)
_log = structlog.get_logger(__name__)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` with a spinner while it lasts; nothing where stderr is no terminal."""
    if not _console.is_terminal:
        yield
        return
    with _console.status(text):
        yield


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that moves a bar.

    Where stderr is no terminal, "still TEXT" is logged every half minute with the newest of both.
    """
    if not _console.is_terminal:
        with _told_again(text) as move:
            yield move
        return
    with Progress(console=_console, transient=True) as bar:
        task = bar.add_task(text, total=None)

        def move_bar(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move_bar


@contextmanager
def _told_again(text: str) -> Iterator[Callable[[int, int], None]]:
    reached: dict[str, int] = {}
    is_over = threading.Event()
    since = time.monotonic()

    def tell() -> None:
        while not is_over.wait(_TELL_AGAIN_S):
            _log.info(f"still {text}", for_s=round(time.monotonic() - since), **reached)

    def move(done: int, total: int) -> None:
        reached.update(done=done, total=total)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield move
    finally:
        is_over.set()
        teller.join()
