"""How far predicted probabilities are from what happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["NUM_BINS", "ReliabilityBin", "expected_calibration_error", "reliability_bins"]

NUM_BINS = 10
"""Equal-width bins of the reported error and of the diagrams."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Rows whose prediction lies in one bin: how many, the mean prediction, the share that held."""

    num_rows: int
    predicted: float
    observed: float


def _bin_of(predicted: Floats, num_bins: int) -> npt.NDArray[np.int64]:
    return np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)


def expected_calibration_error(
    predicted: Floats, outcome: Floats, num_bins: int = NUM_BINS
) -> float:
    """ECE = sum over equal-width bins of |sum of prediction - outcome| / n; 0 without rows.

    predicted, outcome: float64 [n] in [0, 1]. Biased upwards: n perfect predictions still give
    about sum_b sqrt(2 p(1-p) n_b / pi) / n.
    """
    if len(predicted) == 0:
        return 0.0
    excess = np.bincount(_bin_of(predicted, num_bins), predicted - outcome, num_bins)
    return float(np.abs(excess).sum()) / len(predicted)


def reliability_bins(
    predicted: Floats, outcome: Floats, num_bins: int = NUM_BINS
) -> list[ReliabilityBin]:
    """The bins that hold rows, in rising order."""
    index = _bin_of(predicted, num_bins)
    counts = np.bincount(index, minlength=num_bins)
    sums = np.bincount(index, predicted, num_bins)
    held = np.bincount(index, outcome, num_bins)
    return [
        ReliabilityBin(int(counts[b]), float(sums[b] / counts[b]), float(held[b] / counts[b]))
        for b in range(num_bins)
        if counts[b] > 0
    ]
