"""Trying sizes that are not chosen.

A size that looks too dear is never chosen, so it would never be found to have become cheap, or to
have been profiled wrong. Those close to sizes in use are tried in turn, the one that was not seen
for longest first: at most one in 128 steps, and half as often, down to one in 2,048, after each
round that brought nothing new.
"""

from __future__ import annotations

import numpy as np

from specsched_scheduler.learning.cost.regions import Regions

__all__ = ["SizeProbes"]

_MIN_INTERVAL_STEPS = 128
_MAX_INTERVAL_STEPS = 2048
_STALE_STEPS = 512
_REACH = 4
"""Regions to each side of one in use that may be tried."""
_SURPRISE = 0.1
_NUM_FOLLOWING = 10
"""Probes of the same size after a surprise: a ratio takes some samples."""


class SizeProbes:
    """Says when to try which size. One thread."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._interval = _MIN_INTERVAL_STEPS
        self._next_step = _MIN_INTERVAL_STEPS
        self._tried: set[int] = set()
        self._pending: tuple[int, int, float] | None = None
        self._followed = 0
        self._num_following = 0

    def next_rows(self, step: int) -> int:
        """Rows to try in some step soon, 0 for none now."""
        if step < self._next_step:
            return 0
        region = self._followed if self._num_following > 0 else self._stalest(step)
        if region is None:
            return 0
        self._next_step = step + self._interval
        self._pending = (region, step, self._regions.log_ratio(region))
        return int(self._regions.sizes[region])

    def judge(self) -> None:
        """After the ratios were renewed: did the last probe find what was predicted?"""
        if self._pending is None:
            return
        region, step, before = self._pending
        if self._regions.last_visit[region] <= step:
            return
        self._pending = None
        if self._num_following > 0:
            self._num_following -= 1
        elif abs(self._regions.surprise(region, before)) > _SURPRISE:
            self._followed, self._num_following = region, _NUM_FOLLOWING
            self._interval = _MIN_INTERVAL_STEPS

    def _stalest(self, step: int) -> int | None:
        last_visit = self._regions.last_visit
        is_used = (last_visit >= 0) & (last_visit > step - _STALE_STEPS)
        reached = np.convolve(is_used, np.ones(2 * _REACH + 1))
        near = reached[_REACH : _REACH + len(is_used)] > 0
        candidates = set(np.flatnonzero(near & ~is_used).tolist())
        if not candidates:
            return None
        if candidates <= self._tried:
            self._tried.clear()
            self._interval = min(2 * self._interval, _MAX_INTERVAL_STEPS)
        chosen = min(candidates - self._tried, key=lambda region: (last_visit[region], region))
        self._tried.add(chosen)
        return chosen
