"""What the drafts to be verified are likely to survive, given those of the step before.

A budget rests on confidences one draft old (the lossless rule). For one request they say little:
its next draft may go well where the last one went badly, and the budget for the one must not cut
the other. So survivals are pulled towards their mean of earlier steps,

    expected[r, j] = survival[r, j] + pull[j] * (mean[j] - survival[r, j])
    pull[j] = 2 / (N + 2) * n[j] / (n[j] + 32)

N requests that sample, n[j] survivals in the mean. For many requests it fades out: who survives
changes from draft to draft, how many do hardly changes, and the rows go to the live ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.workspace import SURVIVAL_MEMORY, RunningMean

__all__ = ["fill_pull", "learn_survivals", "pulls"]

_REQUESTS = 2.0
"""At so many requests the mean weighs as much as what was seen."""
_TRUST = 32.0
"""Survivals after which a mean is half believed."""

Floats = npt.NDArray[np.float64]


@njit(cache=True, nogil=True)
def fill_pull(num_sampling: int, prior: Any, past: Any, pull: Any) -> None:
    """Fill past [k], means that never rise along a draft, and pull [k]."""
    lowest = 1.0
    share = _REQUESTS / (num_sampling + _REQUESTS)
    for position in range(len(past)):
        count = prior.num_survivals[position]
        lowest = min(lowest, prior.survival[position])
        past[position] = lowest
        pull[position] = share * (count / (count + _TRUST))


@njit(cache=True, nogil=True)
def learn_survivals(prior: Any, sums: Any, counts: Any) -> None:
    """Take a step's survivals, [k] summed and counted, into the means."""
    for position in range(len(sums)):
        total = prior.num_survivals[position] + counts[position]
        if total > 0.0:
            past = prior.survival[position] * prior.num_survivals[position]
            prior.survival[position] = (past + sums[position]) / total
            prior.num_survivals[position] = min(total, SURVIVAL_MEMORY)


def pulls(num_sampling: int, prior: RunningMean) -> tuple[Floats, Floats]:
    """The same in numpy: (past, pull)."""
    counts = prior.num_survivals
    past = np.minimum.accumulate(np.minimum(prior.survival, 1.0))
    share = _REQUESTS / (num_sampling + _REQUESTS)
    return past, share * (counts / (counts + _TRUST))
