"""Chi-square tests with fixed seeds and stated power."""

from __future__ import annotations

import numpy as np


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """(statistic, degrees of freedom) over the possible cells; no other may be hit."""
    total = counts.sum()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0, "an impossible outcome was drawn"
    expected = total * probabilities[possible]
    return float(((counts[possible] - expected) ** 2 / expected).sum()), int(possible.sum()) - 1


def looks_like(counts: np.ndarray, probabilities: np.ndarray, num_sigmas: float = 4.5) -> bool:
    """Whether counts fit, by the Wilson-Hilferty normal approximation of chi-square.

    4.5 standard deviations: a right sampler fails one seed in about 300,000.
    """
    statistic, dof = chi_square(counts, probabilities)
    spread = 2 / (9 * dof)
    return ((statistic / dof) ** (1 / 3) - (1 - spread)) / spread**0.5 < num_sigmas
