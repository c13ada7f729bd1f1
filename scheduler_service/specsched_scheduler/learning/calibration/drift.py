"""Whether the recent past still behaves as the less recent one.

Two windows over what each step was off: d = accepted - expected, and d * (expected - its mean),
the score of an intercept and of a slope error (so this is the score form of a likelihood-ratio test
of one calibration against two). Hotelling's two-sample statistic is about chi-square with two
degrees of freedom if nothing changed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    num_rows = len(expected)
    off = accepted - expected
    scores = np.stack([off, off * (expected - expected.mean())], axis=1) if num_rows else None
    best, best_at = threshold, 0
    num_recent = _MIN_RECENT
    while scores is not None and num_recent <= num_rows - _MIN_RECENT:
        at = num_rows - num_recent
        statistic = _hotelling(scores[:at], scores[at:])
        if statistic > best:
            best, best_at = statistic, at
        num_recent *= 2
    return best_at


def _hotelling(old: Floats, new: Floats) -> float:
    difference = new.mean(axis=0) - old.mean(axis=0)
    spread = np.cov(old, rowvar=False) / len(old) + np.cov(new, rowvar=False) / len(new)
    spread += 1e-9 * np.eye(2)
    return float(difference @ np.linalg.solve(spread, difference))
