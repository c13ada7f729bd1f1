"""Where a history last continued the way it ends now."""

from __future__ import annotations

from dataclasses import dataclass

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
        self._num_indexed = 0

    def find(self, history: list[int]) -> Match | None:
        """The latest earlier occurrence of the longest suffix found; None where there is none.

        `history` is the one given last time, grown. Lengths beyond `max_length` are measured, up to
        `max_measured_length`, at the occurrence found.
        """
        self._index(history)
        for length in self._lengths:
            if length < len(history):
                start = self._following.get(tuple(history[-length:]))
                if start is not None:
                    return Match(start, self._measure(history, start, length))
        return None

    def _index(self, history: list[int]) -> None:
        # `end` is the index of the token after the n-gram.
        for end in range(max(1, self._num_indexed), len(history)):
            for length in self._lengths:
                if length <= end:
                    self._following[tuple(history[end - length : end])] = end
        self._num_indexed = len(history)

    def _measure(self, history: list[int], start: int, length: int) -> int:
        longest = min(self._max_measured_length, start)
        while length < longest and history[start - length - 1] == history[-length - 1]:
            length += 1
        return length
