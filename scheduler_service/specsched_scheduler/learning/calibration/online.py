"""Calibration that follows the traffic.

Each sampling class keeps its last rows. A refit first asks whether the newest of them come from
elsewhere (then the older ones are forgotten at once) and then fits what is left, cautiously, as an
offline fit would. What is no better than the raw confidence on held-out requests is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.calibration import GREEDY, NUM_CLASSES, SAMPLED
from specsched_scheduler.learning.calibration.drift import find_change
from specsched_scheduler.learning.calibration.fit import FitConfig, fit_class
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.parameters import Calibration, survival

__all__ = ["ClassProgress", "OnlineCalibrator", "OnlineConfig", "PositionShare"]


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """max_rows: memory of each class. look_rows: new rows before it is asked again if the traffic
    changed, at least an eighth of those in memory. Where it did not, a fit waits until a third of
    those in memory are new: it would come out about the same.

    fit: the caution of each fit; by log loss alone, so that it takes milliseconds.
    """

    max_rows: int = 8192
    look_rows: int = 256
    fit: FitConfig = field(
        default_factory=lambda: FitConfig(min_rows=128, num_folds=4, refines=False)
    )


@dataclass(slots=True)
class ClassProgress:
    """Totals of one class. num_rows: taught. num_changes: times that older rows were forgotten."""

    num_rows: int = 0
    num_refits: int = 0
    num_changes: int = 0


@dataclass(frozen=True, slots=True)
class PositionShare:
    """Of the drafts remembered that were verified up to a position: how many, the share that was
    accepted up to it, and the shares expected by raw and by calibrated confidences."""

    num_drafts: int
    accepted: float
    raw: float
    calibrated: float


class OnlineCalibrator:
    """Learns from finished steps. One thread."""

    def __init__(
        self,
        max_draft_tokens: int,
        config: OnlineConfig | None = None,
        start: Calibration | None = None,
    ) -> None:
        self._config = config or OnlineConfig()
        self.calibration = start or Calibration.identity(max_draft_tokens)
        self.progress = tuple(ClassProgress() for _ in range(NUM_CLASSES))
        self._memory = [_empty(max_draft_tokens) for _ in range(NUM_CLASSES)]
        self._pending: list[list[Observations]] = [[] for _ in range(NUM_CLASSES)]
        self._num_unfitted = [0] * NUM_CLASSES

    def observe(self, sampling_class: npt.NDArray[np.integer], observations: Observations) -> None:
        """Add rows that may teach. sampling_class: integers [n]."""
        seen = observations.num_verified > 0
        for of_class in (GREEDY, SAMPLED):
            part = observations.rows(seen & (sampling_class == of_class))
            if len(part):
                self._pending[of_class].append(part)
                self.progress[of_class].num_rows += len(part)

    def update(self) -> bool:
        """Refit each class that has enough new rows; whether the calibration changed."""
        before = self.calibration
        for of_class in (GREEDY, SAMPLED):
            needed = max(self._config.look_rows, len(self._memory[of_class]) // 8)
            if sum(map(len, self._pending[of_class])) >= needed:
                self._look(of_class)
        return not self.calibration.equals(before)

    def shares(self, of_class: int) -> list[PositionShare]:
        """How far expectations hold, by draft position; 0 throughout where there are no drafts."""
        rows = _concatenate([self._memory[of_class], *self._pending[of_class]])
        k, calibration = rows.max_draft_tokens, self.calibration
        raw = survival(rows.logit, np.ones(k), np.zeros(k))
        calibrated = survival(
            rows.logit, calibration.temperature[of_class], calibration.intercept[of_class]
        )
        shares = []
        for position in range(k):
            known = rows.is_known(position)
            num = int(known.sum())
            outcomes = (rows.reached(position), raw[:, position], calibrated[:, position])
            means = [float(each[known].mean()) if num else 0.0 for each in outcomes]
            shares.append(PositionShare(num, *means))
        return shares

    def restore(self, calibration: Calibration, num_rows: Sequence[int] = (0, 0)) -> None:
        """Go on from `calibration`; what was observed so far is forgotten.

        num_rows: that taught it, by sampling class.
        """
        self.calibration = calibration
        for progress, num in zip(self.progress, num_rows, strict=True):
            progress.num_rows = num
        k = calibration.max_draft_tokens
        self._memory = [_empty(k) for _ in range(NUM_CLASSES)]
        self._pending = [[] for _ in range(NUM_CLASSES)]
        self._num_unfitted = [0] * NUM_CLASSES

    def _look(self, of_class: int) -> None:
        """Take the new rows into the memory; refit where they are many or come from elsewhere."""
        new = _concatenate(self._pending[of_class])
        self._pending[of_class] = []
        self._num_unfitted[of_class] += len(new)
        rows = _concatenate([self._memory[of_class], new])
        rows = rows.rows(slice(max(0, len(rows) - self._config.max_rows), None))
        change = find_change(self._expected(of_class, rows), rows.num_accepted.astype(np.float64))
        if change:
            self.progress[of_class].num_changes += 1
            rows = rows.rows(slice(change, None))
        self._memory[of_class] = rows
        if change or 3 * self._num_unfitted[of_class] >= len(rows):
            self._refit(of_class)

    def _refit(self, of_class: int) -> None:
        fit = fit_class(self._memory[of_class], self._config.fit)
        self._num_unfitted[of_class] = 0
        self.progress[of_class].num_refits += 1
        # A position too rare to judge keeps what it has: it was learned, or handed over.
        is_unknown = np.isnan(fit.z)
        temperature = np.where(is_unknown, self.calibration.temperature[of_class], fit.temperature)
        intercept = np.where(is_unknown, self.calibration.intercept[of_class], fit.intercept)
        self.calibration = self.calibration.with_class(of_class, temperature, intercept)

    def _expected(self, of_class: int, rows: Observations) -> npt.NDArray[np.float64]:
        """Drafts expected to be accepted among those verified, by the calibration in force."""
        temperature = self.calibration.temperature[of_class]
        intercept = self.calibration.intercept[of_class]
        expected: npt.NDArray[np.float64] = _expected_drafts(
            rows.logit, rows.num_verified, temperature, intercept
        )
        return expected


@njit(cache=True, nogil=True)
def _expected_drafts(logit: Any, num_verified: Any, temperature: Any, intercept: Any) -> Any:
    expected = np.zeros(len(logit))
    for row in range(len(logit)):
        survival = 1.0
        for position in range(num_verified[row]):
            value = logit[row, position] / temperature[position] + intercept[position]
            if not np.isfinite(value):  # no confidence, so nothing is expected from here on
                break
            survival /= 1.0 + np.exp(-value)
            expected[row] += survival
    return expected


def _empty(max_draft_tokens: int) -> Observations:
    nothing = np.zeros(0, dtype=np.int64)
    return Observations(np.zeros((0, max_draft_tokens)), nothing, nothing, nothing)


def _concatenate(parts: list[Observations]) -> Observations:
    return Observations(
        np.concatenate([part.logit for part in parts]),
        np.concatenate([part.num_verified for part in parts]),
        np.concatenate([part.num_accepted for part in parts]),
        np.concatenate([part.group for part in parts]),
    )
