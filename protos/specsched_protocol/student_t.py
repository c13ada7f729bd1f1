"""How far a confidence interval of few values reaches."""

from __future__ import annotations

from typing import Final

__all__ = ["student_t"]

_QUANTILES: Final = {
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
_NORMAL: Final = {0.95: 1.959964, 0.99: 2.575829}


def student_t(degrees_of_freedom: int, confidence: float) -> float:
    """How far an interval of this confidence, 0.95 or 0.99, reaches, in standard errors.

    degrees_of_freedom: 1 or more. Beyond 30 by the expansion about the normal distribution
    (Abramowitz and Stegun 26.7.5), to three decimals.
    """
    table = _QUANTILES[confidence]
    if degrees_of_freedom <= len(table):
        return table[degrees_of_freedom - 1]
    z = _NORMAL[confidence]
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees_of_freedom + second / degrees_of_freedom**2
