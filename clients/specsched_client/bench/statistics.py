"""Order statistics of latencies, and ratios with their uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["Quantiles", "Ratio", "paired_ratio", "quantiles", "student_t"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median, 95th and 99th percentile of `num_samples` values, in the unit of the values."""

    num_samples: int
    p50: float
    p95: float
    p99: float


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Quantiles with linear interpolation; None of nothing."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(np.asarray(values, dtype=np.float64), [50, 95, 99])
    return Quantiles(len(values), float(p50), float(p95), float(p99))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of paired ratios; low, high: its confidence interval, of 95 % unless said.

    With one pair there is no interval: low and high are None.
    """

    num_pairs: int
    mean: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """How far the interval reaches from the mean, as a share of it; None without one."""
        if self.low is None or self.high is None:
            return None
        return math.sqrt(self.high) / math.sqrt(self.low) - 1.0


def paired_ratio(
    values: Sequence[float], baselines: Sequence[float], *, confidence: float = 0.95
) -> Ratio:
    """Ratio of `values` to `baselines`, pair by pair; all positive, of equal length, at least one.

    The interval is Student's t on the logarithms of the ratios: symmetric for a ratio and its
    inverse, and honest about few repeats. confidence: 0.95 or 0.99.
    """
    logs = [math.log(value / base) for value, base in zip(values, baselines, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(len(logs), math.exp(mean), None, None)
    half_width = (
        student_t(len(logs) - 1, confidence) * statistics.stdev(logs) / math.sqrt(len(logs))
    )
    bounds = (math.exp(mean - half_width), math.exp(mean + half_width))
    return Ratio(len(logs), math.exp(mean), *bounds)


_STUDENT_T: Final = {
    0.95: (
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ),
    0.99: (
        63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012,
        2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779,
        2.771, 2.763, 2.756, 2.750,
    ),
}  # fmt: skip
"""Confidence -> how far it reaches to either side, by degrees of freedom, 1 to 30."""


def student_t(degrees_of_freedom: int, confidence: float) -> float:
    """How far an interval of this confidence, 0.95 or 0.99, reaches, in standard errors.

    Beyond 30 degrees of freedom those of 30 are used: the interval is never too narrow.
    """
    table = _STUDENT_T[confidence]
    return table[min(degrees_of_freedom, len(table)) - 1]
