"""What is thought of drafts that have no confidence."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["PriorConfidence"]

_DECAY: Final = 0.95


class PriorConfidence:
    """Mean of the valid confidences per position, recent steps weighing more; 0.5 before any.

    Fed with the outputs of steps that were collected, so drafts not verified yet never count.
    Compiles on construction.
    """

    def __init__(self, num_positions: int) -> None:
        self.mean = np.full(num_positions, 0.5, dtype=np.float32)
        self._sum = np.full(num_positions, 0.5)
        self._count = np.ones(num_positions)
        nothing = np.zeros((0, num_positions), dtype=np.float32)
        _add(nothing, nothing, np.zeros(0, dtype=np.int64), self._sum, self._count, self.mean)
        self._sum[:], self._count[:] = 0.5, 1.0

    def add(
        self,
        confidence: npt.NDArray[np.float32],
        ranked: npt.NDArray[np.float32],
        num_drafts: npt.NDArray[np.int64],
    ) -> None:
        """A step's drafts: confidence and what they are ranked by, [R, k], of num_drafts [R] each.

        Both become NaN where there is no draft.
        """
        _add(confidence, ranked, num_drafts, self._sum, self._count, self.mean)


@njit(cache=True)
def _add(  # noqa: PLR0917 -- the drafts, then the running mean
    confidence: Any, ranked: Any, num_drafts: Any, total: Any, count: Any, mean: Any
) -> None:
    num_rows, num_positions = ranked.shape
    for position in range(num_positions):
        total[position] *= _DECAY
        count[position] *= _DECAY
        for row in range(num_rows):
            if position >= num_drafts[row]:
                confidence[row, position] = ranked[row, position] = np.nan
            elif 0.0 <= ranked[row, position] <= 1.0:
                total[position] += ranked[row, position]
                count[position] += 1.0
        mean[position] = total[position] / count[position]
