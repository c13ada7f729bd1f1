"""The newest samples of every size, and the ratio of measured to predicted cost of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.learning.cost.robust import median_beyond_noise

__all__ = ["CONTEXT", "GAIN", "MEASURED_MS", "NUM_COLUMNS", "ROWS", "STEP", "Regions"]

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
        num_regions = len(self.sizes)
        self._num_captured = int((self.sizes <= profile.capture_limit).sum())
        self._middles = np.sqrt(self.sizes[:-1] * self.sizes[1:].astype(np.float64))
        self._samples = np.zeros((num_regions, _NUM_SAMPLES, NUM_COLUMNS))
        self._num_samples = np.zeros(num_regions, dtype=np.int64)
        self._log_ratio = np.zeros(num_regions)
        self._is_learned = np.zeros(num_regions, dtype=np.bool_)
        self._newest_log = np.zeros(num_regions)
        self._num_visits = np.zeros(num_regions, dtype=np.int64)
        self.last_visit = np.full(num_regions, -1, dtype=np.int64)

    def regions_of(self, rows: Ints) -> Ints:
        """Index of the region that each count of rows is in."""
        stair = np.searchsorted(self.sizes[: self._num_captured], rows)
        beyond = np.maximum(np.searchsorted(self._middles, rows), self._num_captured - 1)
        return np.where(stair < self._num_captured, stair, beyond).astype(np.int64)

    def is_known(self, region: int) -> bool:
        """Whether its samples are enough to be surprised by another."""
        return bool(self._is_learned[region] and self._num_samples[region] >= _KNOWN_SAMPLES)

    def add(self, region: int, step: int, values: tuple[float, ...]) -> None:
        """Add a sample of `step`: a value for each column."""
        self._samples[region, self._num_samples[region] % _NUM_SAMPLES] = values
        self._num_samples[region] += 1
        self._num_visits[region] += 1
        self.last_visit[region] = step

    def samples(self) -> Floats:
        """All of them, float64 [n, NUM_COLUMNS], region after region."""
        return self._samples[self._is_kept()]

    def scale_before(self, step: int, factor: float) -> None:
        """Take samples from before `step` for `factor` times as long."""
        self._samples[self._samples[:, :, STEP] <= step, MEASURED_MS] *= factor

    def learn(self, log_ratio: Floats) -> None:
        """Renew the ratios. log_ratio: float64 [n], measured to predicted, in `samples` order."""
        kept = np.minimum(self._num_samples, _NUM_SAMPLES)
        newest = (self._num_samples - 1) % _NUM_SAMPLES
        _learn(log_ratio, kept, newest, self._log_ratio, self._is_learned, self._newest_log)

    def log_ratio(self, region: int) -> float:
        """Log of the ratio; interpolated where it was never seen, 0 where nothing was."""
        return float(self.log_ratios(np.array([region]))[0])

    def log_ratios(self, regions: Ints) -> Floats:
        """The same of several, float64 [n]."""
        known = np.flatnonzero(self._is_learned)
        if not len(known):
            return np.zeros(len(regions))
        return np.interp(regions, known, self._log_ratio[known])

    def surprise(self, region: int, before: float) -> float:
        """How far the newest sample of a region lies, in logs, from a ratio assumed before it."""
        return float(self._newest_log[region] - before)

    def ratios(self) -> dict[int, float]:
        """size -> ratio of the regions seen."""
        learned = np.flatnonzero(self._is_learned)
        return {int(self.sizes[r]): float(np.exp(self._log_ratio[r])) for r in learned}

    def num_visits(self) -> dict[int, int]:
        """size -> steps in its region."""
        return {int(s): int(n) for s, n in zip(self.sizes, self._num_visits, strict=True)}

    def restore(self, ratios: dict[int, float]) -> None:
        """Take over ratios by size; samples are forgotten."""
        self._num_samples[:] = 0
        for region, size in enumerate(self.sizes.tolist()):
            self._is_learned[region] = size in ratios
            self._log_ratio[region] = np.log(ratios.get(size, 1.0))

    def _is_kept(self) -> npt.NDArray[np.bool_]:
        kept: npt.NDArray[np.bool_] = np.arange(_NUM_SAMPLES) < self._num_samples[:, None]
        return kept


@njit(cache=True, nogil=True)
def _learn(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    logs: Any, num_kept: Any, newest: Any, log_ratio: Any, is_learned: Any, newest_log: Any
) -> None:
    """Renew log_ratio, is_learned and newest_log by region. num_kept: samples of each in `logs`;
    newest: which of them is the newest."""
    end = 0
    for region in range(len(num_kept)):
        num = num_kept[region]
        begin, end = end, end + num
        if num > 0:
            newest_log[region] = logs[begin + newest[region]]
        if num >= _MIN_SAMPLES:
            beyond = median_beyond_noise(logs[begin:end])
            log_ratio[region] = beyond * num / (num + _PRIOR_SAMPLES)
            is_learned[region] = True
