"""What drafting costs, corrected: one ratio per draft length.

    corrected(N, L) = ratio[L] * slowdown(N) * profiled(N, L)

slowdown(N): how many times as long as profiled a step of N rows takes, as the verification of each
step tells. What slows the machine down as a whole slows drafts down too, and is known of them
before there are any again: else they would look cheap after a pause in which it became slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from specsched_scheduler.decision._price import draft_ms_at
from specsched_scheduler.decision.codes import NO_CAP
from specsched_scheduler.decision.cost import CostModel, CostTable, Samples
from specsched_scheduler.learning.cost.robust import robust_ratio
from specsched_scheduler.learning.cost.samples import CostSample, SampleWindow

__all__ = ["DraftCorrector", "Slowdown"]

Slowdown = Callable[[int], float]
"""By the number of requests."""

_WINDOW_STEPS = 64
_PRIOR_SAMPLES = 4.0


class DraftCorrector:
    """Ratios of measured to profiled draft cost, relative to the slowdown; lengths that were never
    drafted take over from the nearest that was."""

    FULL = NO_CAP
    """The length of a full draft."""

    def __init__(self, profile: CostModel, table: CostTable) -> None:
        self._table = table
        self._lengths = (*sorted(profile.short_drafts), self.FULL)
        self._windows: dict[int, SampleWindow] = {}
        self._ratios: dict[int, float] = {}

    def observe(self, samples: Iterable[CostSample], slowdown: Slowdown | None) -> None:
        """Take in finished steps, in which the machine was that slow; None: not known yet."""
        for (num_sampling, draft_tokens), measured_ms in _by_draft(samples).items():
            predicted = draft_ms_at(self._table, num_sampling, draft_tokens)
            if predicted > 0.0:
                length = next(each for each in self._lengths if each >= draft_tokens)
                window = self._windows.setdefault(length, SampleWindow(_WINDOW_STEPS, 4))
                times = np.nan if slowdown is None else slowdown(num_sampling)
                for ms in measured_ms:
                    window.add(ms, predicted, num_sampling, times)

    def update(self, slowdown: Slowdown) -> None:
        """Renew the ratios. Steps of which it was not known how slow they were, were as slow."""
        for length, window in self._windows.items():
            measured, predicted, num_requests, times = window.rows().T
            for row in np.flatnonzero(np.isnan(times)):
                times[row] = slowdown(int(num_requests[row]))
            self._ratios[length] = robust_ratio(measured, predicted * times, _PRIOR_SAMPLES)

    def corrected(
        self, samples: Samples, length: int, slowdown: Slowdown
    ) -> Mapping[int, Sequence[float]]:
        """The samples of one length, scaled."""
        ratio = self._ratio_of(length)
        return {
            requests: tuple(ratio * slowdown(requests) * ms for ms in each)
            for requests, each in samples.items()
        }

    def ratios(self) -> dict[int, float]:
        """length -> ratio, of those drafted; 0 stands for a full draft."""
        return {0 if each == self.FULL else each: r for each, r in self._ratios.items()}

    def restore(self, ratios: dict[int, float]) -> None:
        """Take over ratios by length."""
        self._ratios = {
            length or self.FULL: ratio
            for length, ratio in ratios.items()
            if (length or self.FULL) in self._lengths
        }
        self._windows = {}

    def _ratio_of(self, length: int) -> float:
        if not self._ratios:
            return 1.0
        places = {each: place for place, each in enumerate(self._lengths)}
        nearest = min(self._ratios, key=lambda each: abs(places[each] - places[length]))
        return self._ratios[nearest]


def _by_draft(samples: Iterable[CostSample]) -> dict[tuple[int, int], list[float]]:
    """(requests, length) -> measured ms, of the drafts that were made."""
    measured: dict[tuple[int, int], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.draft_tokens and 0.0 < sample.draft_ms < np.inf:
            measured[sample.num_sampling, sample.draft_tokens].append(sample.draft_ms)
    return measured
