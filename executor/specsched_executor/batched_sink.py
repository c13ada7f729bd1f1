"""Sinks that may be passed by: a step's tokens go to all of them in one call."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from specsched_executor.core import TokenDelta
from specsched_executor.progress import Progress

__all__ = ["BatchedSink", "ProgressTaker"]


class ProgressTaker(Protocol):
    """Takes what a step brings all its requests at once."""

    def take(self, progress: Progress, is_own: npt.NDArray[np.bool_] | None) -> None:
        """Called from the engine thread; must not block. The arrays do not change any more.

        is_own: which of the R outputs are this taker's; None: all.
        """


@runtime_checkable
class BatchedSink(Protocol):
    """A DeltaSink that is left out where an output gets new tokens and nothing else: those go to
    `taker` under `key`. Only the last delta of such an output comes here."""

    @property
    def key(self) -> int:
        """Names the request."""

    @property
    def taker(self) -> ProgressTaker:
        """That of many sinks."""

    def __call__(self, delta: TokenDelta) -> None:
        """See DeltaSink."""
