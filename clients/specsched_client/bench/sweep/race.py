"""Which settings are still worth measuring.

Most of a sweep's time would go to settings that were seen to be slow in its first repeats. They
leave the race between pairs of repeats, for both halves at once, and keep what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from specsched_protocol.student_t import student_t

__all__ = ["PAIR", "settings_behind"]

PAIR: Final = 2
"""Repeats between which settings leave: one in either direction."""
_MARGIN: Final = 0.01
"""A setting that may be this close to the fastest one, as a share of its speed, is no loser."""
_CONFIDENCE: Final = 0.99
"""Of 99.5 % to the one side that counts: it is looked at again after every pair."""


def settings_behind(
    speeds: Mapping[str, Sequence[float]], scheduled: str, *, every_setting: bool = False
) -> tuple[str, ...]:
    """Static settings out of the race: those that left it, and those that are clearly slower.

    speeds: setting -> tokens per second, repeat by repeat; of one that left, of the first repeats.
    The ratio to the fastest static setting of one that is clearly slower has an interval wholly
    below 1 - 1 %. Its width comes from the noise of all settings that are measured, what a repeat
    has of its own taken out: two repeats then tell which are far behind. Before there are two, and
    with every_setting, nobody leaves.
    """
    num_repeats = len(speeds[scheduled])
    static = {name: each for name, each in speeds.items() if name != scheduled}
    left = tuple(name for name, each in static.items() if len(each) < num_repeats)
    whole = [name for name in speeds if name not in left]
    if every_setting or num_repeats < PAIR or len(whole) < 2:
        return left
    logs = np.log(np.array([speeds[name] for name in whole]))
    level = logs.mean(axis=1, keepdims=True)
    noise = logs - level - logs.mean(axis=0, keepdims=True) + logs.mean()
    degrees = (len(whole) - 1) * (num_repeats - 1)
    width = student_t(degrees, _CONFIDENCE) * math.sqrt(
        2 * float((noise**2).sum()) / degrees / num_repeats
    )
    levels = dict(zip(whole, level.ravel().tolist(), strict=True))
    fastest = max(levels[name] for name in whole if name != scheduled)
    slowest = fastest + math.log(1 - _MARGIN) - width
    return tuple(name for name in static if name in left or levels[name] < slowest)
