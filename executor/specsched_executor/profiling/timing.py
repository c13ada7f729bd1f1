"""Timing of many things that are to be compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Run = Callable[[], None]
Clock = Callable[[], float]

_NOISE_FACTOR = 3.0
_MIN_NOISE = 0.03


@dataclass(slots=True)
class InterleavedTimer:
    """Times runs in rounds: each once per round, so that drift of the machine hits all alike.

    runs: by size, rising; larger is expected to cost at least as much. clock: seconds.
    """

    runs: Mapping[int, Run]
    clock: Clock = time.perf_counter
    samples_ms: dict[int, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.samples_ms = {size: [] for size in self.runs}

    def warm_up(self, on_run: Run) -> None:
        """Run everything once, largest first, before anything is timed."""
        for size in sorted(self.runs, reverse=True):
            self.runs[size]()
            on_run()

    def round(self, on_run: Run) -> None:
        """Time everything once."""
        for size in self.runs:
            self.samples_ms[size].append(self._time(size))
            on_run()

    def repeat_too_fast(self) -> int:
        """Take each suspiciously fast sample again and keep the slower one; returns how many were.

        A larger step that is faster than a smaller one by more than noise was not measured right
        (or the smaller was slow every time, which a repeat leaves as it is).
        """
        repeated = 0
        highest = 0.0
        for size in sorted(self.samples_ms):
            samples = self.samples_ms[size]
            for index, sample in enumerate(samples):
                if sample < highest * (1.0 - self._noise(size)):
                    samples[index] = max(sample, self._time(size))
                    repeated += 1
            highest = max(highest, statistics.median(samples))
        return repeated

    def _noise(self, size: int) -> float:
        """Relative spread of a size's samples: three times their median deviation, at least 3 %."""
        samples = self.samples_ms[size]
        middle = statistics.median(samples)
        deviation = statistics.median(abs(sample - middle) for sample in samples)
        return max(_MIN_NOISE, _NOISE_FACTOR * deviation / middle) if middle else _MIN_NOISE

    def _time(self, size: int) -> float:
        started = self.clock()
        self.runs[size]()
        return (self.clock() - started) * 1e3
