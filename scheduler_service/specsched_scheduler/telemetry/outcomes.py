"""What became of verified drafts, beside what was expected of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.calibration.reliability import NUM_BINS
from specsched_scheduler.learning.pairing import Classified

__all__ = ["Bin", "DraftOutcomes", "PositionOutcome"]

HALF_LIFE = 4096
"""Drafts of a position after which one counts half."""
MIN_DRAFTS = 1000
"""Perfect confidences have an error of about 0.04 of so few drafts, by chance alone."""

Floats = npt.NDArray[np.float64]


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
        for of_row, rows in finished:
            sums = np.zeros((3, *self._counts.shape))
            table = (calibration.temperature, calibration.intercept)
            _add_up(rows.logit, rows.num_verified, rows.num_accepted, of_row, *table, sums)
            counts, predicted, held = sums
            fading = 0.5 ** (counts.sum(axis=1, keepdims=True) / HALF_LIFE)
            self._counts = self._counts * fading + counts
            self._predicted = self._predicted * fading + predicted
            self._held = self._held * fading + held
            self.num_judged += int(counts.sum())
            self.num_accepted += int(held.sum())
            self.num_expected += float(predicted.sum())

    def positions(self) -> tuple[PositionOutcome, ...]:
        """By draft position."""
        return tuple(map(self._position, range(len(self._counts))))

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


@njit(cache=True, nogil=True)
def _add_up(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    logit: Any,
    num_verified: Any,
    num_accepted: Any,
    of_row: Any,
    temperature: Any,
    intercept: Any,
    sums: Any,
) -> None:
    """Add drafts, survival predicted and survival held, by position and bin: float64 [3, k, b].

    of_row: sampling class of each row, of the calibration's first axis.
    """
    for row in range(len(logit)):
        its_temperature, its_intercept = temperature[of_row[row]], intercept[of_row[row]]
        survival = 1.0
        for position in range(num_verified[row]):
            value = logit[row, position] / its_temperature[position] + its_intercept[position]
            if np.isnan(value):  # no confidence: what follows is unknown, too
                break
            survival /= 1.0 + np.exp(-value)
            place = min(int(survival * NUM_BINS), NUM_BINS - 1)
            sums[0, position, place] += 1.0
            sums[1, position, place] += survival
            sums[2, position, place] += 1.0 if num_accepted[row] > position else 0.0
