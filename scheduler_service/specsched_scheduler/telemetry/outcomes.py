"""What became of verified drafts, beside what was expected of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.parameters import Calibration, survival
from specsched_scheduler.learning.calibration.reliability import NUM_BINS

__all__ = ["Bin", "DraftOutcomes", "PositionOutcome"]

HALF_LIFE = 4096
"""Drafts of a position after which one counts half."""
MIN_DRAFTS = 1000
"""Perfect confidences have an error of about 0.04 of so few drafts, by chance alone."""

Floats = npt.NDArray[np.float64]
Classified = tuple[npt.NDArray[np.int64], Observations]
"""(sampling class [n], observations), as `Pairing.take` gives them."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Drafts whose predicted survival lies in one of ten bins; num_drafts fades with age."""

    num_drafts: float
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class PositionOutcome:
    """Drafts verified up to a position. error: sum over bins of their share * |predicted -
    observed|; None below 1000 drafts."""

    position: int
    num_drafts: float
    predicted: float
    observed: float
    error: float | None
    bins: tuple[Bin, ...]


class DraftOutcomes:
    """num_judged, num_accepted, num_expected: drafts verified, accepted, expected to be, in all.

    One writer. The rest is of late: a draft counts half once 4096 newer ones of its position came.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.num_judged = 0
        self.num_accepted = 0
        self.num_expected = 0.0
        shape = (max_draft_tokens, NUM_BINS)
        self._counts, self._predicted, self._held = (
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
        )

    def observe(self, calibration: Calibration, finished: Sequence[Classified]) -> None:
        """Judge drafts by the calibration that they were decided by."""
        if not finished:
            return
        classes = np.concatenate([classes for classes, _ in finished])
        rows = [rows for _, rows in finished]
        logit = np.concatenate([each.logit for each in rows])
        verified = np.concatenate([each.num_verified for each in rows])
        accepted = np.concatenate([each.num_accepted for each in rows])
        predicted = np.empty_like(logit)
        for of_class in (GREEDY, SAMPLED):
            mine = classes == of_class
            predicted[mine] = survival(
                logit[mine], calibration.temperature[of_class], calibration.intercept[of_class]
            )
        for position in range(logit.shape[1]):
            known = (verified > position) & np.isfinite(predicted[:, position])
            self._add(position, predicted[known, position], accepted[known] > position)

    def positions(self) -> tuple[PositionOutcome, ...]:
        """By draft position."""
        return tuple(map(self._position, range(len(self._counts))))

    def _add(self, position: int, predicted: Floats, held: npt.NDArray[np.bool_]) -> None:
        if not len(predicted):
            return
        self.num_judged += len(predicted)
        self.num_accepted += int(held.sum())
        self.num_expected += float(predicted.sum())
        place = np.minimum((predicted * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        fading = 0.5 ** (len(predicted) / HALF_LIFE)
        new = (np.ones(len(predicted)), predicted, held.astype(np.float64))
        for sums, values in zip((self._counts, self._predicted, self._held), new, strict=True):
            sums[position] = sums[position] * fading + np.bincount(place, values, NUM_BINS)

    def _position(self, position: int) -> PositionOutcome:
        counts, predicted, held = (
            each[position] for each in (self._counts, self._predicted, self._held)
        )
        total = float(counts.sum())
        bins = tuple(
            Bin(float(n), float(p / n), float(h / n))
            for n, p, h in zip(counts, predicted, held, strict=True)
            if n > 0.0
        )
        if total == 0.0:
            return PositionOutcome(position, 0.0, 0.0, 0.0, None, bins)
        error = float(np.abs(predicted - held).sum()) / total
        return PositionOutcome(
            position=position,
            num_drafts=total,
            predicted=float(predicted.sum()) / total,
            observed=float(held.sum()) / total,
            error=error if total >= MIN_DRAFTS else None,
            bins=bins,
        )
