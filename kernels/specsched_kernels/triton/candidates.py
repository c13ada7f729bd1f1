"""Min-p, top-k and top-p by candidates: the few largest logits of a row, gathered in one pass.

A threshold is guessed from a sample of the row, generously, so that what it leaves is nearly always
more than the cut keeps and few enough for registers. Whether it was is checked exactly afterwards;
a row where it was not is searched whole (see cuts.py). Nothing but time depends on the guess.
With min-p there is nothing to guess: all that it leaves are candidates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.cuts import lowest_likely
from specsched_kernels.triton.row_statistics import needs_sample, request_of
from specsched_kernels.triton.uniforms import SAMPLE, keyed_uniform
from specsched_kernels.triton.vocabulary import find_share, log2_scale, order_key

__all__ = ["candidates_kernel", "collect_candidates"]

_RUN = tl.constexpr(128)
_LARGEST_KEY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def collect_candidates(
    row_ptr,
    candidate_logit_ptr,
    candidate_token_ptr,
    threshold,
    vocab_size,
    BLOCK_VOCAB: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
):
    """Logits that reach the threshold with their tokens, in order of these; how many there are, a
    number beyond MAX_CANDIDATES where they are too many."""
    count = 0
    start = 0
    # Runs of a warp's width: places within one are counted without leaving the warp.
    run = tl.arange(0, BLOCK_VOCAB // _RUN)
    offset = run[:, None] * _RUN + tl.arange(0, _RUN)[None, :]
    while (start < vocab_size) & (count <= MAX_CANDIDATES):
        column = start + offset
        logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
        is_candidate = ((logit >= threshold) & (column < vocab_size)).to(tl.int32)
        in_run = tl.sum(is_candidate, axis=1)
        before = count + tl.cumsum(in_run, axis=0) - in_run
        place = before[:, None] + tl.cumsum(is_candidate, axis=1) - 1
        is_stored = (is_candidate != 0) & (place < MAX_CANDIDATES)
        tl.store(candidate_logit_ptr + place, logit, mask=is_stored)
        tl.store(candidate_token_ptr + place, column, mask=is_stored)
        count += tl.sum(in_run, axis=0)
        start += BLOCK_VOCAB
    return count


@triton.jit(do_not_specialize=["num_requests"])
def candidates_kernel(
    start_loc_ptr,
    position_ptr,
    verify_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    seed_ptr,
    own_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    num_candidates_ptr,
    candidate_logit_ptr,
    candidate_token_ptr,
    vocab_size,
    num_requests,
    BLOCK_REQUESTS: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    ONLY_LAST: tl.constexpr,
):
    """The cut, kept mass and sample of rows with candidates; the mass of the row is stored before.

    A row whose candidates hold less than the cut keeps counts as one with too many.
    """
    for row in range(tl.program_id(0), tl.load(start_loc_ptr + num_requests), tl.num_programs(0)):
        count = tl.load(num_candidates_ptr + row)
        if (count >= 0) & (count <= MAX_CANDIDATES):
            request = request_of(start_loc_ptr, row, num_requests, BLOCK_REQUESTS)
            maximum = tl.load(maximum_ptr + row)
            index = tl.arange(0, MAX_CANDIDATES)
            is_candidate = index < count
            at = tl.cast(row, tl.int64) * MAX_CANDIDATES + index
            logit = tl.load(candidate_logit_ptr + at, mask=is_candidate, other=float("-inf"))
            temperature = tl.load(temperature_ptr + request)
            weight = tl.exp2((logit - maximum) * log2_scale(temperature)).to(tl.float64)
            lowest = lowest_likely(min_p_ptr, request, maximum, temperature)
            holds_all = (lowest > float("-inf")) | (count == vocab_size)
            mass = tl.load(mass_ptr + row)
            if holds_all:
                mass = tl.sum(weight, axis=0)
            cut, is_settled = _cut_among(
                tl.where(is_candidate, order_key(logit), -_LARGEST_KEY),
                weight,
                tl.min(tl.where(is_candidate, order_key(logit), _LARGEST_KEY), axis=0),
                order_key(maximum) + 1,
                tl.load(top_k_ptr + request).to(tl.int32),
                tl.load(top_p_ptr + request).to(tl.float64),
                mass,
                count,
                holds_all,
                vocab_size,
            )
            kept = tl.where(is_candidate & (order_key(logit) >= cut), weight, 0.0)
            mass = tl.sum(kept, axis=0)
            offset = row - tl.load(start_loc_ptr + request)
            if is_settled == 0:
                tl.store(num_candidates_ptr + row, MAX_CANDIDATES + 1)
            else:
                tl.store(cut_ptr + row, cut)
                tl.store(mass_ptr + row, mass)
                if needs_sample(verify_ptr, own_ptr, request, offset, ONLY_LAST):
                    position = tl.load(position_ptr + request) + offset
                    uniform = keyed_uniform(tl.load(seed_ptr + request), position, SAMPLE)
                    found, _ = find_share(kept, index, uniform * mass)
                    first = tl.cast(row, tl.int64) * MAX_CANDIDATES
                    token = tl.load(candidate_token_ptr + first + tl.maximum(found, 0))
                    tl.store(token_ptr + row, token.to(tl.int64))


@triton.jit
def _cut_among(key, weight, low, high, top_k, top_p, mass, count, holds_all, vocab_size):
    """Largest cut in [low, high) that keeps top_k candidates and, of their mass, the share top_p;
    and whether the candidates hold as much, or all there is."""
    cut = low
    is_settled = count > 0
    if (top_k > 0) & (top_k < vocab_size):
        cut = _cut_at_count(key, low, high, count, top_k)
        mass = tl.sum(tl.where(key >= cut, weight, 0.0), axis=0)
        is_settled = is_settled & ((count >= top_k) | holds_all)
    if top_p < 1.0:
        held = tl.sum(tl.where(key >= cut, weight, 0.0), axis=0)
        is_settled = is_settled & ((held >= top_p * mass) | holds_all)
        cut = _cut_at_mass(key, weight, cut, high, top_p * mass)
    return cut, is_settled


@triton.jit
def _cut_at_count(key, low, high, num_at_low, min_count):
    """Largest cut that so many keys reach, found by halving; `low` where not even that is.

    Stops once one key is left between the ends: any cut below it keeps the same.
    """
    num_at_high = 0
    while (high > low + 1) & (num_at_low - num_at_high > 1):
        middle = (high >> 1) + (low >> 1) + (high & low & 1)
        count = tl.sum((key >= middle).to(tl.int32), axis=0)
        is_enough = count >= min_count
        low = tl.where(is_enough, middle, low)
        num_at_low = tl.where(is_enough, count, num_at_low)
        high = tl.where(is_enough, high, middle)
        num_at_high = tl.where(is_enough, num_at_high, count)
    return low


@triton.jit
def _cut_at_mass(key, weight, low, high, min_mass):
    """Largest cut that so much weight reaches, found by halving; `low` where not even that is."""
    while high > low + 1:
        middle = (high >> 1) + (low >> 1) + (high & low & 1)
        is_enough = tl.sum(tl.where(key >= middle, weight, 0.0), axis=0) >= min_mass
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return low
