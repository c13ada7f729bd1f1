"""Numbers for attachments, small and reused, so that series do not pile up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Slots"]


class Slots:
    """num_taken: slots given out since the start. Lives on one event loop."""

    def __init__(self) -> None:
        self.num_taken = 0
        self._in_use: set[int] = set()

    @contextmanager
    def taken(self) -> Iterator[int]:
        """The lowest free one, for the block."""
        slot = next(each for each in itertools.count() if each not in self._in_use)
        self._in_use.add(slot)
        self.num_taken += 1
        try:
            yield slot
        finally:
            self._in_use.discard(slot)
