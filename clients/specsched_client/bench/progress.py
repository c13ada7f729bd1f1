"""The progress bar of a measurement, on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from .session import NoProgress, Progress

__all__ = ["ProgressBar", "show_progress"]


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """A bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield NoProgress()
        return
    with ProgressBar() as bar:
        yield bar


class ProgressBar:
    """Shows the round that runs; gone when the measurement is done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._round = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, title: str, num_requests: int) -> None:
        """A round begins; num_requests: 0: nobody knows how many."""
        total = num_requests or None
        self._bar.update(self._round, description=title, total=total, completed=0)

    def advance(self) -> None:
        """A request ended."""
        self._bar.advance(self._round)
