"""What the chunks of a row of logits sum up to, so that most of sampling looks at a row once."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.vocabulary import log2_scale

__all__ = ["chunk_masses", "largest_of_chunks", "needs_sample", "request_of", "statistics_kernel"]


@triton.jit(do_not_specialize=["num_requests"])
def statistics_kernel(
    logit_ptr,
    start_loc_ptr,
    temperature_ptr,
    maximum_ptr,
    token_ptr,
    mass_ptr,
    vocab_size,
    num_requests,
    num_chunks,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
):
    """Of a chunk of a row: largest logit, NaN where any is, its first token, and the chunk's mass
    relative to it where the request samples at a temperature."""
    at = tl.program_id(0)
    row = at // num_chunks
    if row < tl.load(start_loc_ptr + num_requests):
        column = (at % num_chunks) * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
        logit = tl.load(
            logit_ptr + row.to(tl.int64) * vocab_size + column,
            mask=column < vocab_size,
            other=float("-inf"),
        )
        maximum = tl.max(logit, axis=0)
        token = tl.min(tl.where(logit == maximum, column, vocab_size - 1), axis=0)
        has_nan = tl.max((logit != logit).to(tl.int32), axis=0) != 0
        tl.store(maximum_ptr + at, tl.where(has_nan, float("nan"), maximum))
        tl.store(token_ptr + at, token)
        request = request_of(start_loc_ptr, row, num_requests, BLOCK_REQUESTS)
        temperature = tl.load(temperature_ptr + request)
        if temperature > 0.0:
            shift = tl.where(tl.abs(maximum) < float("inf"), maximum, 0.0)
            mass = tl.sum(tl.exp2((logit - shift) * log2_scale(temperature)), axis=0)
            tl.store(mass_ptr + at, mass)


@triton.jit
def request_of(start_loc_ptr, row, num_requests, BLOCK_REQUESTS: tl.constexpr):
    """Request that a row of logits belongs to: as many end at or before the row."""
    found = 0
    for start in range(0, num_requests, BLOCK_REQUESTS):
        request = start + tl.arange(0, BLOCK_REQUESTS)
        is_request = request < num_requests
        end = tl.load(start_loc_ptr + 1 + request, mask=is_request, other=0x7FFFFFFF)
        found += tl.sum((end <= row).to(tl.int32), axis=0)
    return found


@triton.jit
def needs_sample(verify_ptr, own_ptr, request, offset, ONLY_LAST: tl.constexpr):
    """Whether the request's own sample at this row is looked at."""
    is_needed = offset == tl.load(verify_ptr + request)
    if own_ptr is not None:
        is_needed |= tl.load(own_ptr + request)
    return is_needed | (not ONLY_LAST)


@triton.jit
def largest_of_chunks(maximum_ptr, token_ptr, row, num_chunks, NUM_CHUNKS: tl.constexpr):
    """Largest logit of a row, NaN where any is NaN, and its first token."""
    chunk = tl.arange(0, NUM_CHUNKS)
    is_chunk = chunk < num_chunks
    at = row * num_chunks + chunk
    maxima = tl.load(maximum_ptr + at, mask=is_chunk, other=float("-inf"))
    has_nan = tl.max((maxima != maxima).to(tl.int32), axis=0) != 0
    maximum = tl.max(tl.where(maxima != maxima, float("-inf"), maxima), axis=0)
    token = tl.load(token_ptr + at, mask=is_chunk & (maxima == maximum), other=0x7FFFFFFF)
    return tl.where(has_nan, float("nan"), maximum), tl.min(token, axis=0)


@triton.jit
def chunk_masses(maximum_ptr, mass_ptr, row, maximum, scale, num_chunks, NUM_CHUNKS: tl.constexpr):
    """Mass of each chunk relative to the row's largest logit, which is finite; float64."""
    chunk = tl.arange(0, NUM_CHUNKS)
    is_chunk = chunk < num_chunks
    at = row * num_chunks + chunk
    maxima = tl.load(maximum_ptr + at, mask=is_chunk, other=float("-inf"))
    fade = tl.exp2((maxima - maximum) * scale)
    mass = tl.load(mass_ptr + at, mask=is_chunk & (fade > 0.0), other=0.0)
    return (mass * fade).to(tl.float64)
