"""What finished steps took."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.shm import report_ring as ring

from specsched_scheduler.decision.finished import FinishedSteps

__all__ = ["CostSample", "LastStep", "SampleWindow"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MIN_VERIFICATION_SHARE = 7 / 8
"""Steps with more rows of prefill are not what was profiled: those rows give no logits."""


class CostSample(NamedTuple):
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


class LastStep:
    """The step that no sample was made of yet: how long the drafts were that it timed, the next
    step tells."""

    def __init__(self) -> None:
        self._words: Ints | None = None

    def samples(self, steps: FinishedSteps) -> list[CostSample]:
        """One of each step that teaches, the last of these for the next time."""
        if not steps.words.shape[1]:
            return []
        known = steps.words if self._words is None else np.hstack((self._words, steps.words))
        self._words = steps.words[:, -1:]
        words, following = known[:, :-1], known[:, 1:]
        num_tokens, num_prefill = words[ring.NUM_TOKENS], words[ring.NUM_PREFILL_TOKENS]
        teaches = (num_tokens > 0) & (
            num_tokens - num_prefill >= _MIN_VERIFICATION_SHARE * num_tokens
        )
        is_next = following[ring.STEP_ID] == words[ring.STEP_ID] + 1
        floats = np.ascontiguousarray(words).view(np.float64)
        columns = (
            words[ring.PADDED_NUM_TOKENS],
            words[ring.NUM_SAMPLING],
            words[ring.CONTEXT_TOKENS],
            floats[ring.VERIFY_MS_BITS],
            floats[ring.DRAFT_MS_BITS],
            np.where(is_next, following[ring.ASKED_DRAFT_TOKENS], 0),
        )
        rows = zip(*(column[teaches].tolist() for column in columns), strict=True)
        return [CostSample(*row) for row in rows]


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
