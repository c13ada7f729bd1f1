"""Counts of observations by upper bound, cheap enough for a loop that must not wait."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Histogram"]


class Histogram:
    """counts: by bound, one more than bounds, the last one beyond all. sum: of what was observed.

    One writer; readers on other threads may see a count without its part of the sum.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: upper bounds, inclusive, rising."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def add(self, other: Histogram) -> None:
        """Count what another one of the same bounds has counted."""
        self.counts = [
            ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.sum += other.sum

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many are within it) as Prometheus has it, "+Inf" last."""
        total, result = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            result.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
        return result
