"""Sinks that may be passed by: a step's tokens go to all of them in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specsched_executor.core import TokenDelta

__all__ = ["BatchedSink", "Progress", "ProgressTaker"]

Progress = tuple[int, int, Sequence[int], int, int]
"""Key of a request, index of an output, new tokens, drafts verified and accepted so far."""


class ProgressTaker(Protocol):
    """Takes what a step brings all its requests at once."""

    def take(self, rows: list[Progress]) -> None:
        """Called from the engine thread; must not block. The list is the taker's."""


@runtime_checkable
class BatchedSink(Protocol):
    """A DeltaSink that is left out where an output gets new tokens and nothing else: those go to
    `taker` under `key`, after all deltas that came before."""

    @property
    def key(self) -> int:
        """Names the request."""

    @property
    def taker(self) -> ProgressTaker:
        """That of many sinks."""

    def __call__(self, delta: TokenDelta) -> None:
        """See DeltaSink."""
