"""The schedule against each static setting, and against the best of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from specsched_client.bench.statistics import Ratio, paired_ratio

__all__ = ["BLOCK", "BestStatic", "Verdict", "judge"]

BLOCK: Final = 4
"""Repeats that belong together: of two halves, each a repeat in either direction."""


@dataclass(frozen=True, slots=True)
class BestStatic:
    """chosen: the fastest static setting of each half of the repeats, by geometric mean, of those
    still in the race.

    ratio: of the schedule, in each half to the setting that was chosen on the other one. So no
    repeat takes part in the choice that it is judged by: the best of many would look better than
    it is by the noise it was chosen for.
    """

    chosen: tuple[str, str]
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one load. ratios: static setting -> the schedule's tokens per second over its own, in the
    repeats that both took part in. behind: static settings that are out of the race.
    """

    num_repeats: int
    ratios: Mapping[str, Ratio]
    best_static: BestStatic
    behind: tuple[str, ...] = ()

    @property
    def half_width(self) -> float:
        """Of the widest interval of those that count: to the best, and to all still in the race."""
        return max(ratio.half_width or 0.0 for ratio in self._all_ratios())

    def document(self, target: float) -> dict[str, Any]:
        """As plain values. target: half-width that was aimed at."""
        return {
            "num_repeats": self.num_repeats,
            "half_width": self.half_width,
            "is_precise": self.half_width <= target,
            "behind": list(self.behind),
            "scheduled_to_static": {name: _document(each) for name, each in self.ratios.items()},
            "best_static": {
                "chosen": list(self.best_static.chosen),
                "scheduled_to_best": _document(self.best_static.ratio),
            },
        }

    def _all_ratios(self) -> Iterator[Ratio]:
        yield from (ratio for name, ratio in self.ratios.items() if name not in self.behind)
        yield self.best_static.ratio


def judge(
    speeds: Mapping[str, Sequence[float]], scheduled: str, behind: Collection[str] = ()
) -> Verdict:
    """speeds: setting -> tokens per second, repeat by repeat; a multiple of BLOCK repeats.

    behind: static settings out of the race, which may have only the first of the repeats.
    """
    ours = speeds[scheduled]
    others = {name: each for name, each in speeds.items() if name != scheduled}
    raced = {name: each for name, each in others.items() if name not in behind}
    return Verdict(
        num_repeats=len(ours),
        ratios={name: paired_ratio(ours[: len(each)], each) for name, each in others.items()},
        best_static=_best_static(ours, raced),
        behind=tuple(name for name in others if name in behind),
    )


def _best_static(ours: Sequence[float], others: Mapping[str, Sequence[float]]) -> BestStatic:
    # A repeat that ran backwards stays with the one that ran forwards before it.
    is_first = np.arange(len(ours)) // 2 % 2 == 0
    names = list(others)
    logs = np.log(np.array([others[name] for name in names]))
    chosen = tuple(int(np.argmax(logs[:, half].mean(axis=1))) for half in (is_first, ~is_first))
    base = np.exp(np.where(is_first, logs[chosen[1]], logs[chosen[0]]))
    first, second = (names[each] for each in chosen)
    return BestStatic((first, second), paired_ratio(ours, base.tolist()))


def _document(ratio: Ratio) -> dict[str, Any]:
    return {**asdict(ratio), "half_width": ratio.half_width}
