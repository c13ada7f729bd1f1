"""Order statistics of latencies, and ratios with their uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from specsched_protocol.student_t import student_t

__all__ = ["Quantiles", "Ratio", "paired_ratio", "quantiles"]


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
