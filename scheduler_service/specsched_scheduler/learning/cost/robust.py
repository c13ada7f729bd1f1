"""Fits and averages that single bad samples cannot move."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

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
    terms: Floats,
    measured_ms: Floats,
    prior: Floats,
    is_signed: npt.NDArray[np.bool_],
    start: Floats | None = None,
) -> Floats:
    """Coefficients float64 [m] of measured = terms @ coefficients; terms: float64 [n, m].

    Least absolute RELATIVE residuals, by reweighted least squares, pulled to `prior` as if by one
    row for each term: where the samples do not tell terms apart (all of one size and context) the
    prior does. A third of the samples may be anything without moving the fit far. Coefficients that
    are not signed are at least 0. start: where to begin, `prior` if None; it decides how long it
    takes, not where it ends.
    """
    design = terms / measured_ms[:, None]
    ridge = np.maximum(np.mean(design**2, axis=0), _TINY)
    begin = prior if start is None else start
    fitted: Floats = _reweighted(design, ridge, prior, is_signed, begin)
    return fitted


@njit(cache=True, nogil=True)
def _reweighted(design: Any, ridge: Any, prior: Any, is_signed: Any, start: Any) -> Any:
    coefficients = start.copy()
    for _ in range(_NUM_ROUNDS):
        normal, right = np.diag(ridge), ridge * prior
        _add_rows(design, coefficients, normal, right)
        new = _solve_within_bounds(normal, right, is_signed)
        is_done = np.abs((new - coefficients) * np.sqrt(ridge)).max() <= _TOLERANCE
        coefficients = new
        if is_done:
            break
    return coefficients


@njit(cache=True, nogil=True)
def _add_rows(design: Any, coefficients: Any, normal: Any, right: Any) -> None:
    """Add the normal equations of all rows, each weighted by how far `coefficients` are off."""
    num_rows, num_terms = design.shape
    for row in range(num_rows):
        residual = -1.0
        for term in range(num_terms):
            residual += design[row, term] * coefficients[term]
        weight = 1.0 / max(abs(residual), _SMOOTH)
        for i in range(num_terms):
            right[i] += weight * design[row, i]
            for j in range(num_terms):
                normal[i, j] += weight * design[row, i] * design[row, j]


@njit(cache=True, nogil=True)
def _solve_within_bounds(normal: Any, right: Any, is_signed: Any) -> Any:
    """The solution with every coefficient that came out negative, and may not, held at 0."""
    while True:
        solution = _solve(normal.copy(), right.copy())
        wrong = (solution < 0.0) & ~is_signed
        if not wrong.any():
            return solution
        for term in range(len(right)):
            if wrong[term]:
                normal[term, :] = 0.0
                normal[:, term] = 0.0
                normal[term, term] = 1.0
                right[term] = 0.0


@njit(cache=True, nogil=True)
def _solve(normal: Any, right: Any) -> Any:
    """Solve a positive definite system in place, by elimination: it has a term or three."""
    num_terms = len(right)
    for pivot in range(num_terms):
        for row in range(pivot + 1, num_terms):
            factor = normal[row, pivot] / normal[pivot, pivot]
            for column in range(pivot, num_terms):
                normal[row, column] -= factor * normal[pivot, column]
            right[row] -= factor * right[pivot]
    for row in range(num_terms - 1, -1, -1):
        for column in range(row + 1, num_terms):
            right[row] -= normal[row, column] * right[column]
        right[row] /= normal[row, row]
    return right


@njit(cache=True, nogil=True)
def median_beyond_noise(samples: Any) -> Any:
    """The median, less what noise alone could make of it: 0 within two of its standard errors."""
    middle = np.median(samples)
    deviation = _SD_OF_MAD * np.median(np.abs(samples - middle))
    noise = 2.0 * _MEDIAN_NOISE * deviation / np.sqrt(len(samples))
    return np.sign(middle) * max(abs(middle) - noise, 0.0)


def robust_ratio(measured_ms: Floats, predicted_ms: Floats, prior_weight: float) -> float:
    """exp of the median log ratio, pulled to 1 as if by prior_weight samples that say so."""
    num = len(measured_ms)
    if num == 0:
        return 1.0
    middle = float(np.median(np.log(measured_ms / predicted_ms)))
    return float(np.exp(middle * num / (num + prior_weight)))
