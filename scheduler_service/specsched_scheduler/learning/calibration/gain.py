"""Whether one set of predictions is better than another by more than noise."""

from __future__ import annotations

from dataclasses import dataclass
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
    weights = np.random.default_rng(_SEED).multinomial(
        num_groups, np.full(num_groups, 1.0 / num_groups), size=_NUM_RESAMPLES
    )
    errors = [_excess_by_group(p, outcome, index, num_groups) for p in (before, after)]
    error_before, error_after = (np.abs(each.sum(axis=0)).sum() for each in errors)
    resampled = np.abs(weights @ errors[0]).sum(axis=1) - np.abs(weights @ errors[1]).sum(axis=1)
    loss_gain = np.bincount(index, _log_loss(before, outcome) - _log_loss(after, outcome))
    return HeldOutGain(
        error_z=float((error_before - error_after) / max(resampled.std(), _TINY)),
        loss_z=float(loss_gain.sum() / max((weights @ loss_gain).std(), _TINY)),
        error_before=float(error_before) / (NUM_BINNINGS * len(before)),
    )


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
