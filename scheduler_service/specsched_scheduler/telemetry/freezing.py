"""Confidences that do not change: a drafter's head, or what copies its output, is stuck."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.learning.pairing import DraftedSteps, row_of

__all__ = ["FreezeWatch"]


class FreezeWatch:
    """num_steps: in so many steps, the last ones, nothing changed. One writer.

    A step counts where at least one of its requests that have any was in the last one, and all of
    those have the same confidences as there, bit for bit. A head's depend on what was drafted, and
    repeat by chance in one request at most, and not for long. Those of prompt lookup are a table of
    acceptance rates, which rests where nothing is verified: is_judged is False for it, num_steps
    None.
    """

    def __init__(self, *, is_judged: bool = True) -> None:
        self.num_steps: int | None = 0 if is_judged else None
        self._last: DraftedSteps | None = None

    def observe(self, steps: DraftedSteps) -> None:
        """Steps in the order in which they were decided."""
        if self.num_steps is None or not len(steps.source_step_id):
            return
        if self._last is not None:
            steps = self._last.followed_by(steps)
        self.num_steps = int(_count(steps, steps.confidence.view(np.uint32), self.num_steps))
        self._last = steps.since(len(steps.source_step_id) - 1)


@njit(cache=True, nogil=True)
def _count(steps: Any, bits: Any, num_before: int) -> Any:
    """Steps in a row, the last ones, in which nothing changed; the first step is compared with.

    bits: uint32 [m, k], of the confidences. num_before: such steps up to the first one.
    """
    num_steps = num_before
    for step in range(1, len(steps.source_step_id)):
        are_any, are_same = _compare(steps, bits, step)
        if are_any:
            num_steps = num_steps + 1 if are_same else 0
    return num_steps


@njit(cache=True, nogil=True)
def _compare(steps: Any, bits: Any, step: int) -> Any:
    """(whether this step and the one before have requests in common that have confidences in both,
    whether those have the same bits)."""
    are_any = False
    begin, end = steps.row_begin[step - 1], steps.row_begin[step]
    place = begin
    for row in range(end, steps.row_begin[step + 1]):
        last = row_of(steps, begin, end, place, steps.slot_id[row], steps.generation[row])
        if last < 0:
            continue
        place = last + 1
        if not (_has_any(steps.confidence[row]) and _has_any(steps.confidence[last])):
            continue
        are_any = True
        for position in range(bits.shape[1]):
            if bits[row, position] != bits[last, position]:
                return True, False
    return are_any, True


@njit(cache=True, nogil=True)
def _has_any(confidence: Any) -> Any:
    return np.isfinite(confidence).any()
