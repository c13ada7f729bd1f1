"""Sinks that may be passed by: a step's tokens go to all of them in one call."""

from __future__ import annotations

from typing import Protocol

from specsched_executor.core import TokenDelta
from specsched_executor.progress import Progress

__all__ = ["BatchedSink", "ProgressTaker"]


class ProgressTaker(Protocol):
    """Takes what a step brings all its requests at once. Its methods must not block."""

    def take(self, progress: Progress) -> None:
        """New tokens of its outputs; called from the engine's thread, with arrays that do not
        change any more."""

    def flush(self) -> None:
        """Pass on what its sinks were given: called after them, unless progress came since."""


class BatchedSink:
    """A DeltaSink that is left out where an output gets new tokens and nothing else: those go to
    `taker` under `key`. Only the last delta of such an output comes here, and may wait for what the
    taker is told next.
    """

    __slots__ = ()

    key: int
    taker: ProgressTaker

    def __call__(self, delta: TokenDelta) -> None:
        """See DeltaSink."""
        raise NotImplementedError
