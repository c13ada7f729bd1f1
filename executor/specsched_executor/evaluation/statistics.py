"""How good drafts and confidences are, from their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.student_t import student_t

__all__ = [
    "MeanAccepted",
    "PositionQuality",
    "ReliabilityBin",
    "area_under_curve",
    "mean_accepted",
    "position_quality",
    "reliability",
]

NUM_BINS: Final = 10
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeanAccepted:
    """Accepted drafts per step, bonus not counted, with a 95 % interval over requests.

    mean: None of no steps. low, high: None of fewer than two requests, which tell of no spread.
    """

    num_requests: int
    num_steps: int
    mean: float | None
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, Any]:
        """For reports."""
        return {
            "mean_accepted": self.mean,
            "low_95": self.low,
            "high_95": self.high,
            "num_steps": self.num_steps,
            "num_requests": self.num_requests,
        }


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Drafts predicted alike: how many, the mean prediction, the share that was accepted."""

    num_rows: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class PositionQuality:
    """Of position j: of drafts verified there, whether 0..j were accepted (cumulative), and of
    those whose 0..j-1 were, whether j was (conditional). ece, brier, auc: conditional; auc is
    None where all were accepted, or none."""

    position: int
    num_reached: int
    acceptance: float
    auc: float | None
    ece: float
    brier: float
    cumulative_ece: float
    cumulative_brier: float


def mean_accepted(accepted: Ints, request: Ints) -> MeanAccepted:
    """sum of accepted / number of steps, int64 [n] each; steps of a request are no independent
    draws, so the interval is that of a ratio of sums over requests."""
    if not len(accepted):
        return MeanAccepted(0, 0, None, None, None)
    _, index = np.unique(request, return_inverse=True)
    sums, steps = np.bincount(index, accepted), np.bincount(index)
    mean = float(sums.sum() / steps.sum())
    num = len(sums)
    if num < 2:
        return MeanAccepted(num, len(accepted), mean, None, None)
    spread = float((((sums - mean * steps) ** 2).sum()) ** 0.5 / steps.sum())
    half = student_t(num - 1, 0.95) * spread * (num / (num - 1)) ** 0.5
    return MeanAccepted(num, len(accepted), mean, mean - half, mean + half)


def position_quality(
    confidence: Floats, verified: Ints, accepted: Ints
) -> tuple[PositionQuality, ...]:
    """Of every position that was verified at all; confidence: float64 [n, k]."""
    survival = np.cumprod(confidence, axis=1)
    found = []
    for position in range(confidence.shape[1]):
        seen = (verified > position) & np.isfinite(survival[:, position])
        reached = seen & (accepted >= position)
        if not reached.any():
            break
        outcome = (accepted > position).astype(np.float64)
        own, whole = confidence[reached, position], survival[seen, position]
        found.append(
            PositionQuality(
                position=position,
                num_reached=int(reached.sum()),
                acceptance=float(outcome[reached].mean()),
                auc=area_under_curve(own, outcome[reached]),
                ece=_error(own, outcome[reached]),
                brier=float(((own - outcome[reached]) ** 2).mean()),
                cumulative_ece=_error(whole, outcome[seen]),
                cumulative_brier=float(((whole - outcome[seen]) ** 2).mean()),
            )
        )
    return tuple(found)


def reliability(predicted: Floats, outcome: Floats) -> tuple[ReliabilityBin, ...]:
    """Bins of equal width that hold rows, in rising order; float64 [n] each."""
    index = np.minimum((predicted * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    return tuple(
        ReliabilityBin(
            int((index == number).sum()),
            float(predicted[index == number].mean()),
            float(outcome[index == number].mean()),
        )
        for number in np.unique(index)
    )


def area_under_curve(score: Floats, outcome: Floats) -> float | None:
    """P(score of an accepted draft > that of a rejected one), ties one half; None without both."""
    positive = outcome > 0
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return None
    values, index, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    del values
    total = float(ranks[index][positive].sum()) - num_positive * (num_positive + 1) / 2
    return total / (num_positive * num_negative)


def _error(predicted: Floats, outcome: Floats) -> float:
    """Expected calibration error: sum over bins of share * |mean prediction - share accepted|."""
    bins = reliability(predicted, outcome)
    return sum(b.num_rows * abs(b.predicted - b.observed) for b in bins) / max(1, len(predicted))
