"""Fits and averages that single bad samples cannot move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["fit_terms", "median_beyond_noise", "robust_ratio"]

_NUM_ROUNDS = 30
_SMOOTH = 0.01
"""Residuals below this share weigh alike: next to 0 the least absolute residual is not smooth."""
_TOLERANCE = 1e-5
_TINY = 1e-18
_SD_OF_MAD = 1.4826
_MEDIAN_NOISE = 1.2533
"""Standard error of a median, in standard errors of a mean."""

Floats = npt.NDArray[np.float64]


def fit_terms(
    terms: Floats, measured_ms: Floats, prior: Floats, is_signed: npt.NDArray[np.bool_]
) -> Floats:
    """Coefficients float64 [m] of measured = terms @ coefficients; terms: float64 [n, m].

    Least absolute RELATIVE residuals, by reweighted least squares, pulled to `prior` as if by one
    row for each term: where the samples do not tell terms apart (all of one size and context) the
    prior does. A third of the samples may be anything without moving the fit far. Coefficients that
    are not signed are at least 0.
    """
    design = terms / measured_ms[:, None]
    ridge = np.maximum(np.mean(design**2, axis=0), _TINY)
    coefficients = prior.astype(np.float64)
    for _ in range(_NUM_ROUNDS):
        weight = 1.0 / np.maximum(np.abs(design @ coefficients - 1.0), _SMOOTH)
        weighted = design * weight[:, None]
        normal = weighted.T @ design + np.diag(ridge)
        new = _solve(normal, weighted.sum(axis=0) + ridge * prior, is_signed)
        is_done = np.abs((new - coefficients) * np.sqrt(ridge)).max() <= _TOLERANCE
        coefficients = new
        if is_done:
            break
    return coefficients


def _solve(normal: Floats, right: Floats, is_signed: npt.NDArray[np.bool_]) -> Floats:
    """The solution with every coefficient that came out negative, and may not, held at 0."""
    free = np.ones(len(right), dtype=np.bool_)
    while True:
        solution = np.zeros(len(right))
        solution[free] = np.linalg.solve(normal[np.ix_(free, free)], right[free])
        wrong = (solution < 0.0) & ~is_signed
        if not wrong.any():
            return solution
        free &= ~wrong


def median_beyond_noise(samples: Floats) -> float:
    """The median, less what noise alone could make of it: 0 within two of its standard errors."""
    middle = float(np.median(samples))
    deviation = _SD_OF_MAD * float(np.median(np.abs(samples - middle)))
    noise = 2.0 * _MEDIAN_NOISE * deviation / np.sqrt(len(samples))
    return float(np.sign(middle) * max(abs(middle) - noise, 0.0))


def robust_ratio(measured_ms: Floats, predicted_ms: Floats, prior_weight: float) -> float:
    """exp of the median log ratio, pulled to 1 as if by prior_weight samples that say so."""
    num = len(measured_ms)
    if num == 0:
        return 1.0
    middle = float(np.median(np.log(measured_ms / predicted_ms)))
    return float(np.exp(middle * num / (num + prior_weight)))
