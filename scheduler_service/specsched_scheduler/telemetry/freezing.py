"""Confidences that do not change: a drafter's head, or what copies its output, is stuck."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specsched_scheduler.learning.pairing import StepConfidences

__all__ = ["FreezeWatch"]


class FreezeWatch:
    """num_steps: in so many steps, the last ones, nothing changed. One writer.

    A step counts where at least one of its requests was in the last one, and all of those have the
    same confidences as there, bit for bit. Sound confidences depend on what was drafted, and repeat
    by chance in one request at most, and not for long.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._last: StepConfidences | None = None

    def observe(self, steps: Iterable[StepConfidences]) -> None:
        """Steps in the order in which they were decided."""
        for step in steps:
            last, self._last = self._last, step
            if last is None:
                continue
            is_same = _is_same(last, step)
            if is_same is not None:
                self.num_steps = self.num_steps + 1 if is_same else 0


def _is_same(last: StepConfidences, step: StepConfidences) -> bool | None:
    """Whether the requests of both steps have the same bits in both; None where there are none."""
    now = step.generation.astype(np.int64) << 32 | step.slot_id
    before = last.generation.astype(np.int64) << 32 | last.slot_id
    _, here, there = np.intersect1d(now, before, return_indices=True)
    if not len(here):
        return None
    bits, last_bits = step.confidence.view(np.uint32), last.confidence.view(np.uint32)
    return bool(np.array_equal(bits[here], last_bits[there]))
