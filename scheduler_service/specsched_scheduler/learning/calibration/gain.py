"""Whether one set of predictions is better than another by more than noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.learning.calibration._refinement import (
    NUM_BINNINGS,
    NUM_ERROR_BINS,
    add_excess,
)

__all__ = ["HeldOutGain", "held_out_gain"]

_NUM_RESAMPLES = 200
_SEED = 20260705
_TINY = 1e-9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldOutGain:
    """error_z, loss_z: gain in calibration error and in log loss, in standard errors of the gain.

    error_before: calibration error before, in [0, 1], mean over several binnings.
    Standard errors come from resampling groups (requests), whose rows are not independent.
    """

    error_z: float
    loss_z: float
    error_before: float


def held_out_gain(
    before: Floats, after: Floats, outcome: Floats, group: npt.NDArray[np.int64]
) -> HeldOutGain:
    """Compare predictions float64 [n] of outcomes 0 or 1; group: int64 [n].

    Deterministic: the resampling has a fixed seed.
    """
    _, index = np.unique(group, return_inverse=True)
    num_groups = int(index.max()) + 1
    loss_gain = np.bincount(index, _log_loss(before, outcome) - _log_loss(after, outcome))
    by_group = [_excess_by_group(each, outcome, index, num_groups) for each in (before, after)]
    error_before, error_after = (float(np.abs(each.sum(axis=0)).sum()) for each in by_group)
    error_gains, loss_gains = _resampled_gains(_resamples(num_groups), *by_group, loss_gain)
    return HeldOutGain(
        error_z=(error_before - error_after) / max(float(error_gains.std()), _TINY),
        loss_z=float(loss_gain.sum()) / max(float(loss_gains.std()), _TINY),
        error_before=error_before / (NUM_BINNINGS * len(before)),
    )


@lru_cache(maxsize=8)
def _resamples(num_groups: int) -> npt.NDArray[np.int64]:
    """How often each group is in each resample, int64 [n, num_groups]."""
    shares = np.full(num_groups, 1.0 / num_groups)
    generator = np.random.default_rng(_SEED)
    return generator.multinomial(num_groups, shares, size=_NUM_RESAMPLES)


def _log_loss(predicted: Floats, outcome: Floats) -> Floats:
    safe = np.clip(predicted, _TINY, 1.0 - _TINY)
    losses: Floats = -np.log(np.where(outcome > 0.5, safe, 1.0 - safe))
    return losses


@njit(cache=True, nogil=True)
def _excess_by_group(predicted: Any, outcome: Any, index: Any, num_groups: int) -> Any:
    """Sums of prediction - outcome by group and bin, float64 [num_groups, NUM_ERROR_BINS]."""
    sums = np.zeros((num_groups, NUM_ERROR_BINS))
    for row in range(len(predicted)):
        add_excess(predicted[row], outcome[row], sums[index[row]])
    return sums


@njit(cache=True, nogil=True)
def _resampled_gains(weights: Any, before: Any, after: Any, loss_gain: Any) -> Any:
    """(gain in calibration error, gain in log loss) of each resample, float64 [n] each.

    weights: of `_resamples`. No matrix product: BLAS would wake threads for it, which spin on cores
    that steps are computed on.
    """
    num_resamples, num_groups = weights.shape
    errors, losses = np.zeros(num_resamples), np.zeros(num_resamples)
    excess_before, excess_after = np.zeros(NUM_ERROR_BINS), np.zeros(NUM_ERROR_BINS)
    for resample in range(num_resamples):
        excess_before[:] = 0.0
        excess_after[:] = 0.0
        for group in range(num_groups):
            weight = weights[resample, group]
            if weight == 0:
                continue
            losses[resample] += weight * loss_gain[group]
            for error_bin in range(NUM_ERROR_BINS):
                excess_before[error_bin] += weight * before[group, error_bin]
                excess_after[error_bin] += weight * after[group, error_bin]
        errors[resample] = np.abs(excess_before).sum() - np.abs(excess_after).sum()
    return errors, losses
