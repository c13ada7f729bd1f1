"""Compiled: from the best log loss to the least calibration error nearby.

A log loss weighs every row, the calibration error only how far bins are off on the whole; the
sequential temperature scaling of arXiv 2607.05147 minimises the latter. It is flat and jumps where
a row changes bins, so it is searched on a grid around the proper solution, averaged over three
binnings (an edge then decides little) and with a small price on the distance (a tie stays put).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.learning.calibration._logistic import (
    MAX_INTERCEPT,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)

__all__ = ["NUM_BINNINGS", "NUM_ERROR_BINS", "add_excess", "refine_position"]

_BINS = (10, 15, 20)
NUM_ERROR_BINS = 45
NUM_BINNINGS = 3
_REACH = 0.4
_NUM_SCALES = 9
_NUM_INTERCEPTS = 17
_PRICE_OF_DISTANCE = 0.001
_MIN_SCALE, _MAX_SCALE = 1.0 / MAX_TEMPERATURE, 1.0 / MIN_TEMPERATURE


@njit(cache=True, nogil=True)
def add_excess(survival: float, reached: float, excess: Any) -> None:
    """Add one row to the sums of prediction - outcome per bin, float64 [NUM_ERROR_BINS]."""
    offset = 0
    for num_bins in _BINS:
        excess[offset + min(int(survival * num_bins), num_bins - 1)] += survival - reached
        offset += num_bins


@njit(cache=True, nogil=True)
def _binned_error(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    logit: Any, prev: Any, reached: Any, scale: float, intercept: float, excess: Any
) -> Any:
    """Mean calibration error over the binnings. excess: scratch."""
    excess[:] = 0.0
    for row in range(len(logit)):
        survival = prev[row] / (1.0 + np.exp(-(scale * logit[row] + intercept)))
        add_excess(survival, reached[row], excess)
    return np.abs(excess).sum() / (len(_BINS) * max(len(logit), 1))


@njit(cache=True, nogil=True)
def refine_position(logit: Any, prev: Any, reached: Any, scale: float, intercept: float) -> Any:
    """(scale, intercept) of least error on the grid around the ones given."""
    excess = np.zeros(NUM_ERROR_BINS)
    best = _binned_error(logit, prev, reached, scale, intercept, excess)
    best_scale, best_intercept = scale, intercept
    for d_scale in np.linspace(-_REACH, _REACH, _NUM_SCALES):
        for d_intercept in np.linspace(-_REACH, _REACH, _NUM_INTERCEPTS):
            near_scale = min(max(scale + d_scale, _MIN_SCALE), _MAX_SCALE)
            near_intercept = min(max(intercept + d_intercept, -MAX_INTERCEPT), MAX_INTERCEPT)
            error = _binned_error(logit, prev, reached, near_scale, near_intercept, excess)
            error += _PRICE_OF_DISTANCE * (abs(d_scale) + abs(d_intercept))
            if error < best:
                best, best_scale, best_intercept = error, near_scale, near_intercept
    return best_scale, best_intercept
