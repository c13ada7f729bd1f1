"""Settings of the OpenMP runtime that have to be made before it is loaded.

GNU OpenMP's threads wait for each other actively for a while, then asleep; a step on a CPU has some
hundred such waits. A thread that spins for one which queues for its turn on the same core burns
whole time slices. To wake one that fell asleep takes tens of microseconds on a virtual machine.
Steps of SmolLM2-135M on two cores in ms, by the turns of the waiting loop, for 1 and for 16 rows:

| beside | 200 | 1000 | 5000 | 30,000 |
|---|---|---|---|---|
| nothing | 35, 57 | 29, 52 | 22, 47 | 19, 39 |
| a program that keeps one core busy | 34, 64 | 37, 68 | 60, 94 | 132, 169 |

So an executor on a CPU waits long, and `serve.crowding` has it wait shortly while others want its
cores. Whoever embeds an engine gets the short wait, which harms nobody else.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["forget_waiting", "user_chose_waiting", "wait_long", "wait_shortly"]

_VARIABLE: Final = "GOMP_SPINCOUNT"
_SHORT: Final = "200"
"""Some 10 us."""
_LONG: Final = "30000"
"""Some 1 ms, longer than what lies between two parallel regions of a step."""

user_chose_waiting: Final = _VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ
"""Then all stays as it is."""


def wait_shortly() -> None:
    """The default of this package; to be called before torch is imported."""
    _set(_SHORT)


def wait_long() -> None:
    """For a process that watches whether others want its cores; before torch is imported."""
    _set(_LONG)


def forget_waiting() -> None:
    """Leave the environment as the user gave it, for a program that starts in this one's place."""
    if not user_chose_waiting:
        os.environ.pop(_VARIABLE, None)


def _set(spins: str) -> None:
    if not user_chose_waiting:
        os.environ[_VARIABLE] = spins
