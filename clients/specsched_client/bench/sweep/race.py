"""Which settings are still worth measuring.

Most of a sweep's time would go to settings that were seen to be slow in its first repeats. They
leave the race between blocks of repeats, for both halves at once, and keep what was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from specsched_client.bench.statistics import paired_ratio

__all__ = ["settings_behind"]

_MARGIN: Final = 0.01
"""A setting that may be this close to the fastest one, as a share of its speed, is no loser."""
_CONFIDENCE: Final = 0.99
"""Of 99.5 % to the one side that counts: it is looked at again after every block."""


def settings_behind(
    speeds: Mapping[str, Sequence[float]], scheduled: str, min_repeats: int | None
) -> tuple[str, ...]:
    """Static settings out of the race: those that left it, and those that are clearly slower.

    speeds: setting -> tokens per second, repeat by repeat; of one that left, of the first repeats.
    The ratio to the fastest static setting of one that is clearly slower has an interval wholly
    below 1 - 1 %. Before there are min_repeats nobody leaves; None: nobody ever.
    """
    num_repeats = len(speeds[scheduled])
    static = {name: each for name, each in speeds.items() if name != scheduled}
    if min_repeats is None or num_repeats < min_repeats:
        return tuple(name for name, each in static.items() if len(each) < num_repeats)
    whole = [each for each in static.values() if len(each) == num_repeats]
    fastest = max(whole, key=statistics.geometric_mean)
    return tuple(
        name
        for name, each in static.items()
        if len(each) < num_repeats or _is_slower(each, fastest)
    )


def _is_slower(speeds: Sequence[float], fastest: Sequence[float]) -> bool:
    ratio = paired_ratio(speeds, fastest, confidence=_CONFIDENCE)
    return ratio.high is not None and ratio.high < 1 - _MARGIN
