"""Keyed uniforms in compiled code: bit for bit those of `reference.uniforms`."""

from __future__ import annotations

import numpy as np
from specsched_protocol.compiling import njit

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_1 = np.uint64(0xBF58_476D_1CE4_E5B9)
_MIX_2 = np.uint64(0x94D0_49BB_1331_11EB)
_NUM_PURPOSES = np.uint64(4)
_FRACTION_SHIFT = np.uint64(11)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@njit(cache=True, nogil=True)
def _mix(state: np.uint64) -> np.uint64:
    state = (state ^ (state >> _SHIFTS[0])) * _MIX_1
    state = (state ^ (state >> _SHIFTS[1])) * _MIX_2
    return state ^ (state >> _SHIFTS[2])


@njit(cache=True, nogil=True)
def keyed_uniform(seed: int, position: int, purpose: int) -> float:
    """float64 in [0, 1), 53 random bits; counter 0."""
    state = _mix(np.uint64(seed) + _GOLDEN)
    key = np.uint64(position) * _NUM_PURPOSES + np.uint64(purpose)
    state = _mix(state ^ (key * _GOLDEN))
    state = _mix(state + _GOLDEN)
    return np.float64(state >> _FRACTION_SHIFT) * 2.0**-53
