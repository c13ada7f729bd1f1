"""Passes over one row of logits: weights, their sum, and the token that a uniform falls on."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.temperature import SMALLEST_TEMPERATURE

__all__ = [
    "LOWEST_KEY",
    "draw_target",
    "find_share",
    "log2_scale",
    "mass_of",
    "order_key",
    "weights_of",
]

LOWEST_KEY = tl.constexpr(-0x7FFFFFFF)
_LOG2_E = tl.constexpr(1.4426950408889634)
_SMALLEST_TEMPERATURE = tl.constexpr(SMALLEST_TEMPERATURE)
_NO_INDEX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def log2_scale(temperature):
    """log2(e) / temperature, bounded: 0 times it is still 0."""
    return _LOG2_E / tl.maximum(temperature, _SMALLEST_TEMPERATURE)


@triton.jit
def order_key(logit):
    """int32 that orders as the float does; -0 and 0 are one."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@triton.jit
def weights_of(row_ptr, column, scale, maximum, cut, vocab_size):
    """exp((logit - largest) / temperature) from the cut up, else 0; float64."""
    logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
    weight = tl.exp2((logit - maximum) * scale).to(tl.float64)
    is_kept = (order_key(logit) >= cut) & (column < vocab_size)
    return tl.where(is_kept, weight, 0.0)


@triton.jit
def mass_of(row_ptr, scale, maximum, cut, vocab_size, BLOCK_VOCAB: tl.constexpr):
    """Sum of the weights of the tokens that a cut keeps."""
    mass = tl.zeros([BLOCK_VOCAB], tl.float64)
    for start in range(0, vocab_size, BLOCK_VOCAB):
        column = start + tl.arange(0, BLOCK_VOCAB)
        mass += weights_of(row_ptr, column, scale, maximum, cut, vocab_size)
    return tl.sum(mass, axis=0)


@triton.jit
def draw_target(
    row_ptr, scale, maximum, cut, target, fallback, vocab_size, BLOCK_VOCAB: tl.constexpr
):
    """First token whose cumulative weight exceeds the target, else (rounding) the fallback."""
    token = -1
    before = tl.full([], 0.0, tl.float64)
    start = 0
    while (token < 0) & (start < vocab_size):
        column = start + tl.arange(0, BLOCK_VOCAB)
        weight = weights_of(row_ptr, column, scale, maximum, cut, vocab_size)
        block = tl.sum(weight, axis=0)
        if before + block > target:
            token, _ = find_share(weight, column, target - before)
        before += block
        start += BLOCK_VOCAB
    return tl.where(token < 0, fallback, token)


@triton.jit
def find_share(weight, index, target):
    """Index at which the running sum passes the target, and what is left of the target there.

    Where rounding lets none pass it, the last index of any weight; -1 where none has any.
    """
    running = tl.cumsum(weight, axis=0)
    has_weight = weight > 0.0
    found = tl.min(tl.where(has_weight & (running > target), index, _NO_INDEX), axis=0)
    last = tl.max(tl.where(has_weight, index, -1), axis=0)
    found = tl.where(found == _NO_INDEX, last, found)
    return found, target - tl.sum(tl.where(index < found, weight, 0.0), axis=0)
