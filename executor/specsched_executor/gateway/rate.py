"""The rate of a growing total, from readings at whatever times somebody asks."""

from __future__ import annotations

from collections import deque
from typing import Final

_MAX_READINGS: Final = 50
"""Kept within a window; readings that come faster are not."""


class RateMeter:
    """Units per second over the last `window_s` seconds, or since the last reading before them.

    Pure: the clock's readings are passed in and must not go back.
    """

    def __init__(self, now_s: float, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._readings = deque([(now_s, 0)])

    def update(self, now_s: float, total: int) -> float:
        """Add a reading; 0.0 while no time has passed."""
        # The oldest kept is the newest one that is at least a window old.
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - self._window_s:
            self._readings.popleft()
        start_s, start_total = self._readings[0]
        if now_s >= self._readings[-1][0] + self._window_s / _MAX_READINGS:
            self._readings.append((now_s, total))
        return (total - start_total) / (now_s - start_s) if now_s > start_s else 0.0
