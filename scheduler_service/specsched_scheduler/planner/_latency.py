"""A histogram of durations with a relative resolution of 1/16, and its quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["NUM_BUCKETS", "bucket_of", "durations_ns", "quantile_ns"]

_SUB_BITS = 4
_SUB_BUCKETS = 1 << _SUB_BITS
NUM_BUCKETS = _SUB_BUCKETS * 40
"""Enough for 2^43 ns, more than two hours."""


@njit(cache=True, nogil=True)
def bucket_of(duration_ns: int) -> Any:
    """Index of the bucket: exact below 32 ns, then 16 buckets for each power of two."""
    value, shift = max(duration_ns, 0), 0
    while value >= 2 * _SUB_BUCKETS:
        value >>= 1
        shift += 1
    return min(shift * _SUB_BUCKETS + value, NUM_BUCKETS - 1)


def _upper_bound_ns(bucket: int) -> int:
    if bucket < 2 * _SUB_BUCKETS:
        return bucket
    shift = bucket // _SUB_BUCKETS - 1
    return ((bucket - shift * _SUB_BUCKETS + 1) << shift) - 1


def durations_ns(histogram: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """(upper bound of a bucket, how many are in it), rising, of the buckets that hold any."""
    counts = histogram.copy()
    return [(_upper_bound_ns(int(i)), int(counts[i])) for i in np.flatnonzero(counts)]


def quantile_ns(histogram: npt.NDArray[np.int64], quantile: float) -> int:
    """Upper bound of the bucket in which the quantile lies; 0 for an empty histogram."""
    cumulative = np.cumsum(histogram)
    total = int(cumulative[-1])
    if total == 0:
        return 0
    rank = max(1, int(np.ceil(quantile * total)))
    return _upper_bound_ns(int(np.searchsorted(cumulative, rank)))
