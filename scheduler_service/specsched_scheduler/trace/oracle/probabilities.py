"""How often drafts of each confidence survive, from outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .step import OracleStep

__all__ = ["by_confidence", "by_request", "isotonic"]

_NUM_FOLDS = 5
_SHRINKAGE = 10.0
"""Expected drafts of a request that count as much as what its confidences say."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def by_confidence(steps: Sequence[OracleStep]) -> list[Floats]:
    """Survivals of the drafts of each step, float64 [N, k], as all outcomes teach them.

    For each position the share that survived, as a function that rises with the drafter's own
    survival (isotonic regression), from the outcomes of other requests: a step's own outcome has no
    part in it, nor has anything else of its request (five folds). Outcomes that are not known are
    left out; given the confidences this biases nothing, since which drafts are verified depends on
    confidences alone.
    """
    survival = np.concatenate([step.survival for step in steps])
    verified, accepted, group = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("num_verified", "num_accepted", "group")
    )
    fold = np.unique(group, return_inverse=True)[1] % _NUM_FOLDS
    fitted = np.empty_like(survival)
    for place in range(survival.shape[1]):
        for part in range(_NUM_FOLDS):
            is_asked, teaches = fold == part, (fold != part) & (verified > place)
            fitted[is_asked, place] = _fit(
                survival[teaches, place],
                (accepted[teaches] > place).astype(np.float64),
                survival[is_asked, place],
            )
    return _split(np.minimum.accumulate(fitted, axis=1), steps)


def by_request(
    steps: Sequence[OracleStep], probabilities: Sequence[Floats], outcomes: Sequence[Floats]
) -> list[Floats]:
    """`probabilities` corrected by how each request fared in its other steps, by position.

    Multiplied by (accepted + s) / (expected + s) of those steps, s being _SHRINKAGE.
    """
    group = np.concatenate([step.group for step in steps])
    request = np.unique(group, return_inverse=True)[1]
    expected, came = np.concatenate(probabilities), np.concatenate(outcomes)
    sums = np.zeros((2, int(request.max()) + 1, expected.shape[1]))
    np.add.at(sums[0], request, expected)
    np.add.at(sums[1], request, came)
    expected_elsewhere, came_elsewhere = sums[0][request] - expected, sums[1][request] - came
    factor = (came_elsewhere + _SHRINKAGE) / (expected_elsewhere + _SHRINKAGE)
    corrected = np.minimum.accumulate(np.clip(expected * factor, 0.0, 1.0), axis=1)
    return _split(corrected, steps)


def _split(values: Floats, steps: Sequence[OracleStep]) -> list[Floats]:
    return np.split(values, np.cumsum([len(step.group) for step in steps])[:-1])


def _fit(known: Floats, outcome: Floats, asked: Floats) -> Floats:
    """Without any outcome the drafter is believed."""
    if not len(known):
        return asked
    value, share = isotonic(known, outcome)
    return share[np.clip(np.searchsorted(value, asked, side="right") - 1, 0, len(value) - 1)]


def isotonic(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """(values, means): the rising step function of x with the least squared distance to y.

    From each of the ascending values on, up to the next one, it has that mean. Pool adjacent
    violators; equal x belong together.
    """
    values, place = np.unique(x, return_inverse=True)
    counts = np.bincount(place).astype(np.float64)
    sums = np.bincount(place, weights=y)
    blocks: list[tuple[float, float, float]] = []  # begin, sum, count
    for value, total, count in zip(values.tolist(), sums.tolist(), counts.tolist(), strict=True):
        begin, merged, size = value, total, count
        while blocks and blocks[-1][1] * size >= merged * blocks[-1][2]:
            begin, before, number = blocks.pop()
            merged, size = merged + before, size + number
        blocks.append((begin, merged, size))
    begins, totals, sizes = (np.array(each) for each in zip(*blocks, strict=True))
    return begins, totals / sizes
