"""Progress of the start-up, for a person on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

__all__ = ["progress_bar", "status"]

_console = Console(stderr=True)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` with a spinner while it lasts; nothing where stderr is no terminal."""
    if not _console.is_terminal:
        yield
        return
    with _console.status(text):
        yield


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback (done, total) that moves a bar; None where stderr is no terminal."""
    if not _console.is_terminal:
        yield None
        return
    with Progress(console=_console, transient=True) as bar:
        task = bar.add_task(text, total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move
