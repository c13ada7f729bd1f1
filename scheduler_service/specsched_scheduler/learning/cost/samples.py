"""What finished steps took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["CostSample", "SampleWindow"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostSample:
    """One finished step.

    num_tokens: size of the graph that ran, or rows where there is none. num_sampling: requests that
    sampled (N); context_tokens: in their caches. verify_ms: target and sampling. draft_tokens:
    length of the drafts made at its end, 0 for none; draft_ms: their time.
    """

    num_tokens: int
    num_sampling: int
    context_tokens: int
    verify_ms: float
    draft_ms: float = 0.0
    draft_tokens: int = 0


class SampleWindow:
    """The last `capacity` rows of `width` numbers each."""

    def __init__(self, capacity: int, width: int) -> None:
        self._rows = np.zeros((capacity, width))
        self._num_added = 0

    def add(self, *values: float) -> None:
        """Append one row; the oldest makes room."""
        self._rows[self._num_added % len(self._rows)] = values
        self._num_added += 1

    def clear(self) -> None:
        """Forget all rows."""
        self._num_added = 0

    def __len__(self) -> int:
        return min(self._num_added, len(self._rows))

    def rows(self) -> Floats:
        """The rows themselves, float64 [n, width], in no order; changes to them stay."""
        return self._rows[: len(self)]
