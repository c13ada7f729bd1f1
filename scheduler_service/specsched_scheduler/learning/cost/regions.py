"""The newest samples of every size, and the ratio of measured to predicted cost of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.learning.cost.robust import median_beyond_noise
from specsched_scheduler.learning.cost.samples import SampleWindow

__all__ = ["CONTEXT", "GAIN", "MEASURED_MS", "ROWS", "STEP", "Regions"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Columns of a sample.
ROWS = 0
CONTEXT = 1
MEASURED_MS = 2
STEP = 3
GAIN = 4
"""How much closer the correction was than the profile, in logs; NaN where it was not judged."""
NUM_COLUMNS = 5

_NUM_SAMPLES = 24
_MIN_SAMPLES = 3
_KNOWN_SAMPLES = 6
_PRIOR_SAMPLES = 0.5
"""A ratio is pulled to 1 as if so many samples said so."""


class Regions:
    """One region per profiled size: up to the capture limit a stair, beyond it a neighbourhood.

    A region that was never seen takes over the ratio of its nearest seen neighbours.
    """

    def __init__(self, profile: CostModel) -> None:
        self.sizes = np.array(sorted(profile.verify), dtype=np.int64)
        self._num_captured = int((self.sizes <= profile.capture_limit).sum())
        self._middles = np.sqrt(self.sizes[:-1] * self.sizes[1:].astype(np.float64))
        self._samples = [SampleWindow(_NUM_SAMPLES, NUM_COLUMNS) for _ in self.sizes]
        self._log_ratio = np.zeros(len(self.sizes))
        self._is_learned = np.zeros(len(self.sizes), dtype=np.bool_)
        self._last_logs: list[Floats] = [np.zeros(0) for _ in self.sizes]
        self._num_visits = np.zeros(len(self.sizes), dtype=np.int64)
        self.last_visit = np.full(len(self.sizes), -1, dtype=np.int64)

    def region_of(self, rows: int) -> int:
        """Index of the region that `rows` is in."""
        stair = int(np.searchsorted(self.sizes[: self._num_captured], rows))
        if stair < self._num_captured:
            return stair
        return max(int(np.searchsorted(self._middles, rows)), self._num_captured - 1)

    def is_known(self, region: int) -> bool:
        """Whether its samples are enough to be surprised by another."""
        return bool(self._is_learned[region]) and len(self._samples[region]) >= _KNOWN_SAMPLES

    def add(self, region: int, step: int, values: tuple[float, ...]) -> None:
        """Add a sample of `step`: a value for each column."""
        self._samples[region].add(*values)
        self._num_visits[region] += 1
        self.last_visit[region] = step

    def samples(self) -> Floats:
        """All of them, float64 [n, NUM_COLUMNS], region after region."""
        if not self._samples:  # an executor that measured nothing
            return np.zeros((0, NUM_COLUMNS))
        return np.concatenate([window.rows() for window in self._samples])

    def scale_before(self, step: int, factor: float) -> None:
        """Take samples from before `step` for `factor` times as long."""
        for window in self._samples:
            rows = window.rows()
            rows[rows[:, STEP] <= step, MEASURED_MS] *= factor

    def learn(self, log_ratio: Floats) -> None:
        """Renew the ratios. log_ratio: float64 [n], measured to predicted, in `samples` order."""
        end = 0
        for region, window in enumerate(self._samples):
            begin, end = end, end + len(window)
            self._last_logs[region] = log_ratio[begin:end]
            if len(window) >= _MIN_SAMPLES:
                beyond = median_beyond_noise(log_ratio[begin:end])
                self._log_ratio[region] = beyond * len(window) / (len(window) + _PRIOR_SAMPLES)
                self._is_learned[region] = True

    def log_ratio(self, region: int) -> float:
        """Log of the ratio; interpolated where it was never seen, 0 where nothing was."""
        known = np.flatnonzero(self._is_learned)
        if not len(known):
            return 0.0
        return float(np.interp(region, known, self._log_ratio[known]))

    def surprise(self, region: int, before: float) -> float:
        """How far the newest sample of a region lies, in logs, from a ratio assumed before it."""
        newest = int(np.argmax(self._samples[region].rows()[:, STEP]))
        return float(self._last_logs[region][newest] - before)

    def ratios(self) -> dict[int, float]:
        """size -> ratio of the regions seen."""
        learned = np.flatnonzero(self._is_learned)
        return {int(self.sizes[r]): float(np.exp(self._log_ratio[r])) for r in learned}

    def num_visits(self) -> dict[int, int]:
        """size -> steps in its region."""
        return {int(s): int(n) for s, n in zip(self.sizes, self._num_visits, strict=True)}

    def restore(self, ratios: dict[int, float]) -> None:
        """Take over ratios by size; samples are forgotten."""
        for region, size in enumerate(self.sizes.tolist()):
            self._samples[region].clear()
            self._is_learned[region] = size in ratios
            self._log_ratio[region] = np.log(ratios.get(size, 1.0))
