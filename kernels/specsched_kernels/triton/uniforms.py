"""Keyed uniforms on the device, bit for bit those of the host."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.reference.uniforms import Purpose

__all__ = ["ACCEPT", "DRAFT", "RESIDUAL", "SAMPLE", "keyed_uniform"]

SAMPLE = tl.constexpr(int(Purpose.SAMPLE))
ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
RESIDUAL = tl.constexpr(int(Purpose.RESIDUAL))
DRAFT = tl.constexpr(int(Purpose.DRAFT))
_NUM_PURPOSES = tl.constexpr(len(Purpose))
_GOLDEN = tl.constexpr(0x9E37_79B9_7F4A_7C15 - (1 << 64))
_MIX_1 = tl.constexpr(0xBF58_476D_1CE4_E5B9 - (1 << 64))
_MIX_2 = tl.constexpr(0x94D0_49BB_1331_11EB - (1 << 64))


@triton.jit
def keyed_uniform(seed, position, PURPOSE: tl.constexpr, counter=0):
    """float64 in [0, 1) of int64 keys; int64 arithmetic wraps, shifts are masked to be logical."""
    state = _mix(seed + _GOLDEN)
    state = _mix(state ^ ((position * _NUM_PURPOSES + PURPOSE) * _GOLDEN))
    state = _mix(state + (counter + 1) * _GOLDEN)
    mantissa = (state >> 11) & 0x1FFFFFFFFFFFFF
    return mantissa.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _mix(state):
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * _MIX_1
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return state ^ ((state >> 31) & 0x1FFFFFFFF)
