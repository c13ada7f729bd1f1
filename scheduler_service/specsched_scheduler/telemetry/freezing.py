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
    bits, last_bits = step.confidence.view(np.uint32), last.confidence.view(np.uint32)
    here, there = _in_both(last, step)
    has_any = _has_any(step)[here] & _has_any(last)[there]
    differs = np.any(np.not_equal(bits[here], last_bits[there]), axis=1)
    return not bool((differs & has_any).any()) if has_any.any() else None


def _has_any(step: StepConfidences) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(step.confidence).any(axis=1))


_Rows = npt.NDArray[np.int64] | slice


def _in_both(last: StepConfidences, step: StepConfidences) -> tuple[_Rows, _Rows]:
    """Rows of the requests that both steps have: in `step`, and in `last`."""
    if np.array_equal(last.slot_id, step.slot_id) and np.array_equal(
        last.generation, step.generation
    ):
        return slice(None), slice(None)
    now = step.generation.astype(np.int64) << 32 | step.slot_id
    before = last.generation.astype(np.int64) << 32 | last.slot_id
    _, here, there = np.intersect1d(now, before, return_indices=True)
    return here, there
