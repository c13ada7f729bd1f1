"""Where min-p, top-k and top-p cut a row of logits, found without a sort in passes over it."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.vocabulary import LOWEST_KEY, mass_of, order_key

__all__ = ["cut_of", "guess_threshold", "lowest_likely"]

_NUM_PIVOTS = tl.constexpr(3)
_NUM_LINES = tl.constexpr(4)
_BLOCK_SEARCH = tl.constexpr(512)
_NUM_SAMPLED = tl.constexpr(2048)
_SAMPLED_RUN = tl.constexpr(128)
_MAX_DEPTH = tl.constexpr(32.0)
_NUM_HALVINGS = tl.constexpr(9)


@triton.jit
def lowest_likely(min_p_ptr, request, maximum, temperature):
    """Smallest logit that min_p leaves in a row; -inf where it leaves all."""
    lowest = float("-inf")
    if min_p_ptr is not None:
        min_p = tl.load(min_p_ptr + request)
        if min_p > 0.0:
            lowest = maximum + temperature * tl.log(min_p)
    return lowest


@triton.jit
def guess_threshold(row_ptr, maximum, scale, min_count, max_left_out, vocab_size):
    """A logit that min_count tokens reach and that at most max_left_out of the mass lies below, the
    highest there is, as far as a sample of the row can tell."""
    index = tl.arange(0, _NUM_SAMPLED)
    column = (index // _SAMPLED_RUN) * (vocab_size // (_NUM_SAMPLED // _SAMPLED_RUN))
    column += index % _SAMPLED_RUN
    logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
    depth = (maximum - logit) * scale
    weight = tl.exp2(-depth)
    share = vocab_size / _NUM_SAMPLED
    low = 0.0
    high = _MAX_DEPTH
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) * 0.5
        is_above = depth <= middle
        count = tl.sum(is_above.to(tl.float32), axis=0) * share
        below = tl.sum(tl.where(is_above, 0.0, weight), axis=0) * share
        is_enough = (count >= min_count) & (below <= max_left_out)
        high = tl.where(is_enough, middle, high)
        low = tl.where(is_enough, low, middle)
    return maximum - high / scale


@triton.jit
def cut_of(
    row_ptr, scale, maximum, lowest, top_k, top_p, mass, vocab_size, BLOCK_VOCAB: tl.constexpr
):
    """Largest cut that keeps top_k tokens and, of their mass, the share top_p, of those that reach
    the logit `lowest`; mass: of the row."""
    cut = tl.full([], LOWEST_KEY, tl.int32)
    if lowest > float("-inf"):
        cut = order_key(lowest)
        mass = mass_of(row_ptr, scale, maximum, cut, vocab_size, BLOCK_VOCAB)
    num_kept = vocab_size
    for by_mass in range(2):  # top-k, then top-p: a loop, so that its body is compiled once
        is_cut = tl.where(by_mass == 1, top_p < 1.0, (top_k > 0) & (top_k < vocab_size))
        if is_cut:
            count = tl.where(by_mass == 1, 0, top_k).to(tl.float32)
            left_out = tl.where(by_mass == 1, (1.0 - top_p) * mass, float("inf")).to(tl.float32)
            guessed_low = guess_threshold(
                row_ptr, maximum, scale, 1.3 * count, 0.8 * left_out, vocab_size
            )
            guessed_high = guess_threshold(
                row_ptr, maximum, scale, 0.7 * count, 1.2 * left_out, vocab_size
            )
            cut, num_kept = _raise_cut(
                row_ptr,
                scale,
                maximum,
                cut,
                num_kept,
                tl.where(by_mass == 1, 1, top_k),
                tl.where(by_mass == 1, top_p * mass, -1.0),
                guessed_low,
                guessed_high,
                vocab_size,
            )
            mass = mass_of(row_ptr, scale, maximum, cut, vocab_size, BLOCK_VOCAB)
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
    guessed_low,
    guessed_high,
    vocab_size,
):
    """Largest cut that keeps min_count tokens and min_mass, four times closer with every pass.

    The first pass looks where the guesses are. Stops once one token is left between the ends: any
    cut below it keeps the same tokens.
    """
    high = order_key(maximum) + 1
    num_at_high = 0
    pivot = order_key(guessed_low)
    step = tl.maximum((order_key(guessed_high) >> 1) - (pivot >> 1), 1)
    while (high > low + 1) & (num_at_low - num_at_high > 1):
        counts, masses = _above_pivots(row_ptr, scale, maximum, pivot, step, vocab_size)
        for index in tl.static_range(_NUM_PIVOTS):
            count = tl.sum(counts[index], axis=0)
            mass = tl.sum(masses[index].to(tl.float64), axis=0)
            if (pivot > low) & (pivot < high):
                if (count >= min_count) & (mass >= min_mass):
                    low = pivot
                    num_at_low = count
                else:
                    high = pivot
                    num_at_high = count
            pivot += step
        step = tl.maximum((high >> 2) - (low >> 2), 1)
        pivot = low + step
    return low, num_at_low


@triton.jit
def _above_pivots(row_ptr, scale, maximum, pivot, step, vocab_size):
    """Tokens and mass at or above each of three pivots, so far apart each, by lane."""
    count = tl.zeros([_BLOCK_SEARCH], tl.int32)
    mass = tl.zeros([_BLOCK_SEARCH], tl.float32)
    counts = (count, count, count)
    masses = (mass, mass, mass)
    # Lines are added up in registers, and all their loads are under way at once.
    lines = tl.arange(0, _NUM_LINES)[:, None] * _BLOCK_SEARCH + tl.arange(0, _BLOCK_SEARCH)[None, :]
    for start in range(0, vocab_size, _NUM_LINES * _BLOCK_SEARCH):
        column = start + lines
        logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
        key = tl.where(column < vocab_size, order_key(logit), LOWEST_KEY)
        weight = tl.exp2((logit - maximum) * scale)
        counts, masses = _add(key, weight, pivot, step, counts, masses)
    return counts, masses


@triton.jit
def _add(key, weight, pivot, step, counts, masses):
    new_counts = ()
    new_masses = ()
    for index in tl.static_range(_NUM_PIVOTS):
        is_above = key >= pivot + index * step
        count = tl.sum(is_above.to(tl.int32), axis=0)
        new_counts = new_counts + (counts[index] + count,)
        mass = tl.sum(tl.where(is_above, weight, 0.0), axis=0)
        new_masses = new_masses + (masses[index] + mass,)
    return new_counts, new_masses
