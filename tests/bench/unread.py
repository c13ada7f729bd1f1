"""A client that reads nothing, so that what is measured ends where tokens are handed over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_executor.core import TokenDelta
from specsched_executor.progress import Progress

__all__ = ["Unread"]


class Unread:
    """A BatchedSink and its taker, as a front end in a process of its own has them."""

    key = 0

    @property
    def taker(self) -> Unread:
        """Itself."""
        return self

    def take(self, progress: Progress, is_own: npt.NDArray[np.bool_] | None) -> None:
        """New tokens of many outputs."""

    def __call__(self, delta: TokenDelta) -> None:
        """The end of an output."""
        assert delta.error is None, delta.error
