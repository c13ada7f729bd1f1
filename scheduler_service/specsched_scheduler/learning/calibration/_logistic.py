"""Compiled: the best scale and intercept of one draft position.

With `prev` the calibrated survival of the positions before, and q = sigmoid(scale * logit +
intercept), the survival prev * q of this position is fitted to whether the draft got that far:

    minimise  sum -y log(prev q) - (1 - y) log(1 - prev q)
              + ridge / 2 ((scale - 1)^2 + intercept^2)

by damped Gauss-Newton steps within bounds. The scale is 1 / temperature.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

__all__ = ["MAX_INTERCEPT", "MAX_TEMPERATURE", "MIN_TEMPERATURE", "fit_position"]

MIN_TEMPERATURE = 0.25
MAX_TEMPERATURE = 4.0
MAX_INTERCEPT = 3.0

_MIN_SCALE, _MAX_SCALE = 1.0 / MAX_TEMPERATURE, 1.0 / MIN_TEMPERATURE
_TINY = 1e-9
_MAX_STEPS = 25
_TOLERANCE = 1e-6


@njit(cache=True, nogil=True)
def _evaluate(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    logit: Any, prev: Any, reached: Any, ridge: float, scale: float, intercept: float
) -> Any:
    """(loss, change of scale, change of intercept): one pass, steps by the expected curvature."""
    loss = 0.5 * ridge * ((scale - 1.0) ** 2 + intercept**2)
    g0, g1 = ridge * (scale - 1.0), ridge * intercept
    h00, h01, h11 = ridge, 0.0, ridge
    for row in range(len(logit)):
        q = 1.0 / (1.0 + np.exp(-(scale * logit[row] + intercept)))
        survival = min(max(prev[row] * q, _TINY), 1.0 - _TINY)
        slope = survival * (1.0 - q)
        loss -= np.log(survival if reached[row] > 0.5 else 1.0 - survival)
        # residual * slope / (s (1 - s)) and slope^2 / (s (1 - s)), where slope = s (1 - q)
        odds = (1.0 - q) / (1.0 - survival)
        residual = (survival - reached[row]) * odds
        weight = slope * odds
        g0 += residual * logit[row]
        g1 += residual
        h00 += weight * logit[row] * logit[row]
        h01 += weight * logit[row]
        h11 += weight
    determinant = h00 * h11 - h01 * h01
    return loss, (h01 * g1 - h11 * g0) / determinant, (h01 * g0 - h00 * g1) / determinant


@njit(cache=True, nogil=True)
def fit_position(logit: Any, prev: Any, reached: Any, ridge: float) -> Any:
    """(scale, intercept) of one position; arrays float64 [n]. (1, 0) where there is no row."""
    scale, intercept = 1.0, 0.0
    loss, d_scale, d_intercept = _evaluate(logit, prev, reached, ridge, scale, intercept)
    damping = 1.0
    for _ in range(_MAX_STEPS):
        next_scale = min(max(scale + damping * d_scale, _MIN_SCALE), _MAX_SCALE)
        moved = intercept + damping * d_intercept
        next_intercept = min(max(moved, -MAX_INTERCEPT), MAX_INTERCEPT)
        trial = _evaluate(logit, prev, reached, ridge, next_scale, next_intercept)
        if trial[0] > loss:
            damping *= 0.5
            continue
        is_done = loss - trial[0] <= _TOLERANCE * loss
        scale, intercept, damping = next_scale, next_intercept, 1.0
        loss, d_scale, d_intercept = trial
        if is_done:
            break
    return scale, intercept
