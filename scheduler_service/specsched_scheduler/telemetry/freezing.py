"""Confidences that do not change: a drafter's head, or what copies its output, is stuck."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from specsched_scheduler.learning.pairing import StepConfidences

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
        self._last: StepConfidences | None = None

    def observe(self, steps: Iterable[StepConfidences]) -> None:
        """Steps in the order in which they were decided."""
        for step in steps:
            last, self._last = self._last, step
            is_same = None if last is None else _is_same(last, step)
            if self.num_steps is not None and is_same is not None:
                self.num_steps = self.num_steps + 1 if is_same else 0


def _is_same(last: StepConfidences, step: StepConfidences) -> bool | None:
    """Whether the requests of both steps have the same bits in both; None where there are none."""
    now, bits = _of_requests(step)
    before, last_bits = _of_requests(last)
    _, here, there = np.intersect1d(now, before, return_indices=True)
    return bool(np.array_equal(bits[here], last_bits[there])) if len(here) else None


def _of_requests(step: StepConfidences) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """(a number for each request that has confidences, their bits)."""
    has_any = np.isfinite(step.confidence).any(axis=1)
    requests = step.generation.astype(np.int64) << 32 | step.slot_id
    return requests[has_any], step.confidence[has_any].view(np.uint32)
