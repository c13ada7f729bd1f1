"""Kernels of `verify_drafts` with one program per logit row."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.cuts import cut_of
from specsched_kernels.triton.uniforms import SAMPLE, keyed_uniform
from specsched_kernels.triton.vocabulary import LOWEST_KEY, draw_target, mass_of

__all__ = ["cut_kernel", "largest_kernel", "sample_kernel"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_requests"])
def largest_kernel(
    logit_ptr,
    start_loc_ptr,
    token_ptr,
    maximum_ptr,
    vocab_size,
    num_requests,
    BLOCK_VOCAB: tl.constexpr,
):
    """Largest logit of a row, NaN where any is, and its first token."""
    row = tl.program_id(0)
    if row < tl.load(start_loc_ptr + num_requests):
        row_ptr = logit_ptr + row.to(tl.int64) * vocab_size
        best, token = _largest(row_ptr, vocab_size, BLOCK_VOCAB)
        tl.store(maximum_ptr + row, best)
        tl.store(token_ptr + row, token.to(tl.int64))


@triton.jit(do_not_specialize=["num_requests"])
def cut_kernel(
    logit_ptr,
    start_loc_ptr,
    top_k_ptr,
    top_p_ptr,
    temperature_ptr,
    maximum_ptr,
    cut_ptr,
    vocab_size,
    num_requests,
    LOG_REQUESTS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
):
    """Lowest order key that top-k and top-p keep; the lowest of all where neither cuts."""
    row = tl.program_id(0)
    if row < tl.load(start_loc_ptr + num_requests):
        request = _request_of(start_loc_ptr, row, num_requests, LOG_REQUESTS)
        temperature = tl.load(temperature_ptr + request)
        best = tl.load(maximum_ptr + row)
        cut = tl.full([], LOWEST_KEY, tl.int32)
        if (temperature > 0.0) & (tl.abs(best) < float("inf")):
            row_ptr = logit_ptr + row.to(tl.int64) * vocab_size
            top_k = tl.load(top_k_ptr + request).to(tl.int32)
            top_p = tl.load(top_p_ptr + request).to(tl.float64)
            scale = _LOG2_E / temperature
            cut = cut_of(row_ptr, scale, best, top_k, top_p, vocab_size, BLOCK_VOCAB)
        tl.store(cut_ptr + row, cut)


@triton.jit(do_not_specialize=["num_requests"])
def sample_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    verify_ptr,
    temperature_ptr,
    seed_ptr,
    own_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    sum_ptr,
    vocab_size,
    num_requests,
    LOG_REQUESTS: tl.constexpr,
    ONLY_LAST: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
):
    """Mass of the kept tokens and, where wanted, the sample at the row's own uniform."""
    row = tl.program_id(0)
    if row < tl.load(start_loc_ptr + num_requests):
        request = _request_of(start_loc_ptr, row, num_requests, LOG_REQUESTS)
        temperature = tl.load(temperature_ptr + request)
        best = tl.load(maximum_ptr + row)
        if (temperature > 0.0) & (tl.abs(best) < float("inf")):
            row_ptr = logit_ptr + row.to(tl.int64) * vocab_size
            cut = tl.load(cut_ptr + row)
            scale = _LOG2_E / temperature
            mass = mass_of(row_ptr, scale, best, cut, vocab_size, BLOCK_VOCAB)
            tl.store(sum_ptr + row, mass)
            offset = row - tl.load(start_loc_ptr + request)
            is_wanted = (offset == tl.load(verify_ptr + request)) | (not ONLY_LAST)
            if own_ptr is not None:
                is_wanted |= tl.load(own_ptr + request)
            if is_wanted:
                position = tl.load(position_ptr + request) + offset
                target = keyed_uniform(tl.load(seed_ptr + request), position, SAMPLE) * mass
                fallback = tl.load(token_ptr + row).to(tl.int32)
                token = draw_target(
                    row_ptr, scale, best, cut, target, fallback, vocab_size, BLOCK_VOCAB
                )
                tl.store(token_ptr + row, token.to(tl.int64))


@triton.jit
def _request_of(start_loc_ptr, row, num_requests, LOG_REQUESTS: tl.constexpr):
    """Last request whose rows begin at or before the row."""
    low = 0
    high = num_requests
    for _ in tl.static_range(LOG_REQUESTS):
        middle = (low + high) // 2
        is_past = tl.load(start_loc_ptr + middle) <= row
        low = tl.where(is_past, middle, low)
        high = tl.where(is_past, high, middle)
    return low


@triton.jit
def _largest(row_ptr, vocab_size, BLOCK_VOCAB: tl.constexpr):
    """Largest logit, NaN where any is NaN, and its first token."""
    best = float("-inf")
    token = 0
    for start in range(0, vocab_size, BLOCK_VOCAB):
        column = start + tl.arange(0, BLOCK_VOCAB)
        logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
        has_nan = tl.max((logit != logit).to(tl.int32), axis=0) != 0
        block_best = tl.max(logit, axis=0)
        block_token = tl.min(tl.where(logit == block_best, column, vocab_size - 1), axis=0)
        token = tl.where(block_best > best, block_token, token)
        best = tl.where(block_best > best, block_best, best)
        best = tl.where(has_nan, float("nan"), best)
    return best, token
