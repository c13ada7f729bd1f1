"""Keyed uniforms in Python integers: SplitMix64's finalizer (Steele et al., 2014), once a key."""

from __future__ import annotations

import enum

__all__ = ["Purpose", "keyed_uniform"]

_GOLDEN = 0x9E37_79B9_7F4A_7C15
_WORD = (1 << 64) - 1


class Purpose(enum.IntEnum):
    """What a uniform decides; numbered as the executor's sampling does."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def keyed_uniform(seed: int, position: int, purpose: Purpose, counter: int = 0) -> float:
    """In [0, 1), 53 random bits; a function of the key alone. `counter` tells apart draws of one
    position."""
    state = _mix(seed + _GOLDEN)
    state = _mix(state ^ (((position * len(Purpose) + purpose) * _GOLDEN) & _WORD))
    return float((_mix(state + (counter + 1) * _GOLDEN) >> 11) * 2.0**-53)


def _mix(state: int) -> int:
    state &= _WORD
    state = ((state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    state = ((state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return state ^ (state >> 31)
