"""Whether the recent past still behaves as the less recent one.

Two windows over what each step was off: d = accepted - expected, and d * (expected - its mean),
the score of an intercept and of a slope error (so this is the score form of a likelihood-ratio test
of one calibration against two). Hotelling's two-sample statistic is about chi-square with two
degrees of freedom if nothing changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["DRIFT_THRESHOLD", "find_change"]

DRIFT_THRESHOLD = 40.0
"""Far above chi-square's 1e-5 quantile of 23: rows of one request are alike, and many splits are
tried."""

_MIN_RECENT = 128

Floats = npt.NDArray[np.float64]


def find_change(expected: Floats, accepted: Floats, threshold: float = DRIFT_THRESHOLD) -> int:
    """Index of the row since which things are different; 0 for none.

    expected, accepted: float64 [n], oldest first. Of the splits tried (the last 128, 256, ... rows
    against those before) the most significant one counts.
    """
    if len(expected) < 2 * _MIN_RECENT:
        return 0
    off = accepted - expected
    return int(_most_significant(off, off * (expected - expected.mean()), threshold))


@njit(cache=True, nogil=True)
def _most_significant(first: Any, second: Any, threshold: float) -> int:
    """The split of two scores, float64 [n], whose statistic exceeds the threshold most; 0: none."""
    num_rows = len(first)
    total = _moments(first, second)
    best, best_at = threshold, 0
    num_recent = _MIN_RECENT
    while num_recent <= num_rows - _MIN_RECENT:
        at = num_rows - num_recent
        recent = _moments(first[at:], second[at:])
        statistic = _hotelling(total - recent, at, recent, num_recent)
        if statistic > best:
            best, best_at = statistic, at
        num_recent *= 2
    return best_at


@njit(cache=True, nogil=True)
def _moments(first: Any, second: Any) -> Any:
    """Sums of two scores, of their squares and of their product, float64 [5]."""
    sums = np.zeros(5)
    for row in range(len(first)):
        a, b = first[row], second[row]
        sums[0] += a
        sums[1] += b
        sums[2] += a * a
        sums[3] += b * b
        sums[4] += a * b
    return sums


@njit(cache=True, nogil=True)
def _hotelling(old: Any, num_old: int, new: Any, num_new: int) -> Any:
    """Difference of two means, squared and divided by its spread; by moments and rows of each."""
    a = new[0] / num_new - old[0] / num_old
    b = new[1] / num_new - old[1] / num_old
    aa = bb = 1e-9
    ab = 0.0
    for sums, num in ((old, num_old), (new, num_new)):
        weight = 1.0 / (num * (num - 1.0))
        aa += (sums[2] - sums[0] * sums[0] / num) * weight
        bb += (sums[3] - sums[1] * sums[1] / num) * weight
        ab += (sums[4] - sums[0] * sums[1] / num) * weight
    return (bb * a * a - 2.0 * ab * a * b + aa * b * b) / (aa * bb - ab * ab)
