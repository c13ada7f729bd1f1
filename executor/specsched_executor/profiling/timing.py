"""Timing of many things that are to be compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specsched_executor.profiling.options import ProfileOptions

Run = Callable[[], None]
Clock = Callable[[], float]
Waits = Callable[[], float]
"""The longest that a thread waited for a core since the last call, in seconds."""

_NOISE_FACTOR = 3.0
_MIN_NOISE = 0.03
_MAX_WAITED_SHARE = 0.1


def nobody_waits() -> float:
    """For what is timed where cores are no matter."""
    return 0.0


class Sample(NamedTuple):
    """One time that was taken; waited: for a core, by the thread that waited longest."""

    ms: float
    waited_ms: float

    @property
    def waited_share(self) -> float:
        """How long it waited, of all its time; it may be twice as much too dear."""
        return self.waited_ms / self.ms if self.ms else 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether others used the cores meanwhile, so that it says too little of the run."""
        return self.waited_share > _MAX_WAITED_SHARE


@dataclass(slots=True)
class InterleavedTimer:
    """Times runs in rounds: each once per round, so that drift of the machine hits all alike.

    runs: by size, rising; larger is expected to cost at least as much. clock: seconds. waits: tells
    samples that were disturbed from others.
    """

    runs: Mapping[int, Run]
    clock: Clock = time.perf_counter
    waits: Waits = nobody_waits
    samples: dict[int, list[Sample]] = field(init=False)

    def __post_init__(self) -> None:
        self.samples = {size: [] for size in self.runs}

    @property
    def samples_ms(self) -> dict[int, tuple[float, ...]]:
        """What each size took, time by time."""
        return {n: tuple(each.ms for each in samples) for n, samples in self.samples.items()}

    def warm_up(self, on_run: Run) -> None:
        """Run everything once, largest first, before anything is timed."""
        for size in sorted(self.runs, reverse=True):
            self.runs[size]()
            on_run()

    def settle(self) -> None:
        """Run the first size once: timed, it would pay for what others left in the caches."""
        for run in tuple(self.runs.values())[:1]:
            run()

    def round(self, on_run: Run) -> None:
        """Time everything once."""
        for size in self.runs:
            self.samples[size].append(self._time(size))
            on_run()

    def disturbed_sizes(self, least: int) -> list[int]:
        """Sizes with fewer than `least` samples that nobody disturbed."""
        return [
            size
            for size, samples in self.samples.items()
            if sum(not sample.is_disturbed for sample in samples) < least
        ]

    def retake(self, size: int) -> None:
        """Time the most disturbed sample of a size again, and keep the less disturbed one."""
        samples = self.samples[size]
        index = max(range(len(samples)), key=lambda each: samples[each].waited_share)
        samples[index] = min(samples[index], self._time(size), key=lambda each: each.waited_share)

    def keep_best(self, least: int) -> None:
        """Keep of each size what nobody disturbed, or else the `least` least disturbed samples."""
        for size, samples in self.samples.items():
            sound = [sample for sample in samples if not sample.is_disturbed]
            by_wait = sorted(samples, key=lambda each: each.waited_share)
            self.samples[size] = sound if len(sound) >= least else by_wait[:least]

    def repeat_too_fast(self) -> int:
        """Take each suspiciously fast sample again and keep the slower one; returns how many were.

        A larger step that is faster than a smaller one by more than noise was not measured right
        (or the smaller was slow every time, which a repeat leaves as it is).
        """
        repeated = 0
        highest = 0.0
        for size in sorted(self.samples):
            samples = self.samples[size]
            for index, sample in enumerate(samples):
                if sample.ms < highest * (1.0 - self._noise(size)):
                    again = self._time(size)
                    samples[index] = sample if again.is_disturbed else max(sample, again)
                    repeated += 1
            highest = max(highest, _median_ms(samples))
        return repeated

    def _noise(self, size: int) -> float:
        """Relative spread of a size's samples: three times their median deviation, at least 3 %."""
        samples = self.samples[size]
        middle = _median_ms(samples)
        deviation = statistics.median(abs(sample.ms - middle) for sample in samples)
        return max(_MIN_NOISE, _NOISE_FACTOR * deviation / middle) if middle else _MIN_NOISE

    def _time(self, size: int) -> Sample:
        self.waits()
        started = self.clock()
        self.runs[size]()
        ms = (self.clock() - started) * 1e3
        return Sample(ms, self.waits() * 1e3)


def run_rounds(
    timers: Sequence[InterleavedTimer],
    options: ProfileOptions,
    on_run: Run,
    clock: Clock = time.monotonic,
) -> bool:
    """Warm everything up, time it in rounds, and again what was disturbed; see ProfileOptions.

    The best samples are kept. Returns whether there are disturbed ones among them.
    """
    for timer in timers:
        timer.warm_up(on_run)
    started = clock()
    for done in range(options.max_rounds):
        if done >= options.min_rounds and clock() - started > options.max_seconds:
            break
        for timer in timers:
            timer.settle()
            timer.round(on_run)
    is_disturbed = _retake_disturbed(timers, options, clock)
    for timer in timers:
        timer.keep_best(options.min_rounds)
    return is_disturbed


def _retake_disturbed(
    timers: Sequence[InterleavedTimer], options: ProfileOptions, clock: Clock
) -> bool:
    deadline = clock() + options.max_retake_seconds
    while disturbed := list(_disturbed(timers, options.min_rounds)):
        for timer, size in disturbed:
            if clock() >= deadline:
                return True
            timer.retake(size)
    return False


def _disturbed(
    timers: Sequence[InterleavedTimer], least: int
) -> Iterator[tuple[InterleavedTimer, int]]:
    for timer in timers:
        for size in timer.disturbed_sizes(least):
            yield timer, size


def _median_ms(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.ms for sample in samples)
