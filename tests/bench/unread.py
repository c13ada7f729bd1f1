"""A client that reads nothing, so that what is measured ends where tokens are handed over."""

from __future__ import annotations

from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import TokenDelta
from specsched_executor.progress import Progress

__all__ = ["Unread"]


class Unread(BatchedSink):
    """A BatchedSink and its taker, as a front end in a process of its own has them."""

    key = 0

    def __init__(self) -> None:
        self.taker = self

    def take(self, progress: Progress) -> None:
        """New tokens of many outputs."""

    def flush(self) -> None:
        """Nothing waits."""

    def __call__(self, delta: TokenDelta) -> None:
        """The end of an output."""
        assert delta.error is None, delta.error
