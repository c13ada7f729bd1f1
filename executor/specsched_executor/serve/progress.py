"""Progress of the start-up, for a person on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["status"]

_console = Console(stderr=True)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` with a spinner while it lasts; nothing where stderr is no terminal."""
    if not _console.is_terminal:
        yield
        return
    with _console.status(text):
        yield
