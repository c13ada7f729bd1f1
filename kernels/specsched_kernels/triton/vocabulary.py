"""Passes over one row of logits: weights, their sum, and the token that a uniform falls on."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOWEST_KEY", "draw_residual", "draw_target", "mass_of", "order_key"]

LOWEST_KEY = tl.constexpr(-0x7FFFFFFF)


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
        token, before = search_block(weight, column, before, target)
        start += BLOCK_VOCAB
    return tl.where(token < 0, fallback, token)


@triton.jit
def search_block(weight, column, before, target):
    """Token of the block that covers the target, -1 if none does; the sum up to the block's end."""
    block = tl.sum(weight, axis=0)
    token = -1
    if before + block > target:
        is_past = (before + tl.cumsum(weight, axis=0) > target) & (weight > 0.0)
        token = tl.min(tl.where(is_past, column, 0x7FFFFFFF), axis=0)
        token = tl.where(token == 0x7FFFFFFF, -1, token)
    return token, before + block


@triton.jit
def _residual(row_ptr, drafted_ptr, column, scale, maximum, cut, mass, vocab_size):
    """max(p - q, 0) in a block of the vocabulary."""
    weight = weights_of(row_ptr, column, scale, maximum, cut, vocab_size)
    drafted = tl.load(drafted_ptr + column, mask=column < vocab_size, other=0.0)
    return tl.maximum(weight / mass - drafted.to(tl.float64), 0.0)


@triton.jit
def draw_residual(
    row_ptr,
    drafted_ptr,
    scale,
    maximum,
    cut,
    mass,
    uniform,
    vocab_size,
    BLOCK_VOCAB: tl.constexpr,
):
    """Sample of max(p - q, 0), of p itself where rounding left nothing of it."""
    left = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab_size, BLOCK_VOCAB):
        column = start + tl.arange(0, BLOCK_VOCAB)
        left += tl.sum(
            _residual(row_ptr, drafted_ptr, column, scale, maximum, cut, mass, vocab_size),
            axis=0,
        )
    token = -1
    last = 0
    before = tl.full([], 0.0, tl.float64)
    start = 0
    while (token < 0) & (start < vocab_size):
        column = start + tl.arange(0, BLOCK_VOCAB)
        weight = _residual(row_ptr, drafted_ptr, column, scale, maximum, cut, mass, vocab_size)
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, column, 0), axis=0))
        token, before = search_block(weight, column, before, uniform * left)
        start += BLOCK_VOCAB
    token = tl.where(token < 0, last, token)
    if left <= 0.0:
        token = draw_target(
            row_ptr, scale, maximum, cut, uniform * mass, token, vocab_size, BLOCK_VOCAB
        )
    return token.to(tl.int64)
