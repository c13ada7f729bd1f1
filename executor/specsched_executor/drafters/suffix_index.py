"""Where a history last continued the way it ends now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Match", "SuffixIndex"]


@dataclass(frozen=True, slots=True)
class Match:
    """start: index of the token after the earlier occurrence. length: tokens that match."""

    start: int
    length: int


class SuffixIndex:
    """Most recent occurrence of every n-gram of one growing history, min_length..max_length tokens.

    Kept up incrementally: a step costs a few dictionary entries per new token, however long the
    history is. N-grams are indexed once a token follows them, so the suffix never matches itself.
    """

    def __init__(self, min_length: int, max_length: int, max_measured_length: int) -> None:
        self._lengths = range(max_length, min_length - 1, -1)
        self._max_measured_length = max_measured_length
        self._following: dict[tuple[int, ...], int] = {}
        self._history: list[int] = []

    def find(self, history: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Match | None:
        """The latest earlier occurrence of the longest suffix found; None where there is none.

        `history` is the one given last time, grown. Lengths beyond `max_length` are measured, up to
        `max_measured_length`, at the occurrence found.
        """
        self._extend(np.asarray(history[len(self._history) :]).tolist())
        for length in self._lengths:
            if length < len(self._history):
                start = self._following.get(tuple(self._history[-length:]))
                if start is not None:
                    return Match(start, self._measure(start, length))
        return None

    def continuation(self, start: int, num_tokens: int) -> list[int]:
        """What followed a match; where the history ends, it goes on from itself."""
        continuation = self._history[start : start + num_tokens]
        while len(continuation) < num_tokens:
            continuation += continuation[: num_tokens - len(continuation)]
        return continuation

    def _extend(self, token_ids: Sequence[int]) -> None:
        history, num_indexed = self._history, len(self._history)
        history += token_ids
        # `end` is the index of the token after the n-gram.
        for end in range(max(1, num_indexed), len(history)):
            for length in self._lengths:
                if length <= end:
                    self._following[tuple(history[end - length : end])] = end

    def _measure(self, start: int, length: int) -> int:
        history = self._history
        longest = min(self._max_measured_length, start)
        while length < longest and history[start - length - 1] == history[-length - 1]:
            length += 1
        return length
