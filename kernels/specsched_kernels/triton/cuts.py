"""Where top-k and top-p cut a row of logits, found without a sort in passes over all of it."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.vocabulary import LOWEST_KEY, mass_of, order_key

__all__ = ["cut_of"]

_NUM_PIVOTS = tl.constexpr(7)


@triton.jit
def cut_of(row_ptr, scale, maximum, top_k, top_p, vocab_size, BLOCK_VOCAB: tl.constexpr):
    """Largest cut that keeps top_k tokens and, of their mass, the share top_p."""
    cut = tl.full([], LOWEST_KEY, tl.int32)
    num_kept = vocab_size
    if (top_k > 0) & (top_k < vocab_size):
        nothing = tl.full([], -1.0, tl.float64)
        cut, num_kept = _raise_cut(
            row_ptr, scale, maximum, cut, num_kept, top_k, nothing, vocab_size, BLOCK_VOCAB
        )
    if top_p < 1.0:
        mass = mass_of(row_ptr, scale, maximum, cut, vocab_size, BLOCK_VOCAB)
        cut, num_kept = _raise_cut(
            row_ptr, scale, maximum, cut, num_kept, 1, top_p * mass, vocab_size, BLOCK_VOCAB
        )
    return cut


@triton.jit
def _raise_cut(
    row_ptr,
    scale,
    maximum,
    low,
    num_at_low,
    min_count,
    min_mass,
    vocab_size,
    BLOCK_VOCAB: tl.constexpr,
):
    """Largest cut that keeps min_count tokens and min_mass, eight times closer with every pass.

    Stops once one token is left between the ends: any cut below it keeps the same tokens.
    """
    high = order_key(maximum) + 1
    num_at_high = 0
    while (high > low + 1) & (num_at_low - num_at_high > 1):
        step = tl.maximum((high >> 3) - (low >> 3), 1)
        counts, masses = _above_pivots(row_ptr, scale, maximum, low, step, vocab_size, BLOCK_VOCAB)
        start = low
        end = high
        for index in tl.static_range(_NUM_PIVOTS):
            pivot = start + (index + 1) * step
            count = tl.sum(counts[index], axis=0)
            mass = tl.sum(masses[index].to(tl.float64), axis=0)
            if pivot < end:
                if (count >= min_count) & (mass >= min_mass):
                    low = pivot
                    num_at_low = count
                elif pivot < high:
                    high = pivot
                    num_at_high = count
    return low, num_at_low


@triton.jit
def _above_pivots(row_ptr, scale, maximum, low, step, vocab_size, BLOCK_VOCAB: tl.constexpr):
    """Tokens and mass at or above each of seven pivots low + step, low + 2 step, ..., by lane."""
    count = tl.zeros([BLOCK_VOCAB], tl.int32)
    mass = tl.zeros([BLOCK_VOCAB], tl.float32)
    counts = (count, count, count, count, count, count, count)
    masses = (mass, mass, mass, mass, mass, mass, mass)
    for start in range(0, vocab_size, BLOCK_VOCAB):
        column = start + tl.arange(0, BLOCK_VOCAB)
        logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
        key = tl.where(column < vocab_size, order_key(logit), LOWEST_KEY)
        counts, masses = _add(key, tl.exp2((logit - maximum) * scale), low, step, counts, masses)
    return counts, masses


@triton.jit
def _add(key, weight, low, step, counts, masses):
    new_counts = ()
    new_masses = ()
    for index in tl.static_range(_NUM_PIVOTS):
        is_above = key >= low + (index + 1) * step
        new_counts = new_counts + (counts[index] + is_above.to(tl.int32),)
        new_masses = new_masses + (masses[index] + tl.where(is_above, weight, 0.0),)
    return new_counts, new_masses
