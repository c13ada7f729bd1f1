"""Samples of max(p - q, 0) in place of rejected drafts, split over the vocabulary."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.acceptance import goes_through_test
from specsched_kernels.triton.uniforms import RESIDUAL, keyed_uniform
from specsched_kernels.triton.vocabulary import find_share, log2_scale, weights_of

__all__ = ["residual_kernel", "residual_mass_kernel"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def residual_mass_kernel(
    logit_ptr,
    start_loc_ptr,
    temperature_ptr,
    own_ptr,
    slot_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    drafted_ptr,
    drafted_scale_ptr,
    drafted_maximum_ptr,
    drafted_mass_ptr,
    num_accepted_ptr,
    faulty_ptr,
    residual_ptr,
    target_ptr,
    vocab_size,
    num_chunks,
    NUM_POSITIONS: tl.constexpr,
    CHUNK_VOCAB: tl.constexpr,
):
    """Mass of max(p - q, 0) and of p in a chunk of the row at which a request rejects a draft."""
    at = tl.program_id(0)
    request = at // num_chunks
    row, is_rejected = _rejecting_row(
        start_loc_ptr, temperature_ptr, own_ptr, num_accepted_ptr, faulty_ptr, request
    )
    if is_rejected:
        column = (at % num_chunks) * CHUNK_VOCAB + tl.arange(0, CHUNK_VOCAB)
        p, q = _both(
            logit_ptr, temperature_ptr, slot_ptr, maximum_ptr, cut_ptr, mass_ptr, drafted_ptr,
            drafted_scale_ptr, drafted_maximum_ptr, drafted_mass_ptr, num_accepted_ptr,
            request, row, column, vocab_size, NUM_POSITIONS,
        )  # fmt: skip
        tl.store(residual_ptr + at, tl.sum(tl.maximum(p - q, 0.0), axis=0))
        tl.store(target_ptr + at, tl.sum(p, axis=0))


@triton.jit
def residual_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    temperature_ptr,
    seed_ptr,
    own_ptr,
    slot_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    drafted_ptr,
    drafted_scale_ptr,
    drafted_maximum_ptr,
    drafted_mass_ptr,
    num_accepted_ptr,
    faulty_ptr,
    residual_ptr,
    target_ptr,
    out_token_ptr,
    vocab_size,
    num_chunks,
    NUM_POSITIONS: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNK_VOCAB: tl.constexpr,
):
    """The token in place of a rejected draft; of p itself where rounding left nothing of p - q."""
    request = tl.program_id(0)
    row, is_rejected = _rejecting_row(
        start_loc_ptr, temperature_ptr, own_ptr, num_accepted_ptr, faulty_ptr, request
    )
    if is_rejected:
        chunk = tl.arange(0, NUM_CHUNKS)
        at = request * num_chunks + chunk
        masses = tl.load(residual_ptr + at, mask=chunk < num_chunks, other=0.0)
        is_usable = tl.sum(masses, axis=0) > 0.0
        target = tl.load(target_ptr + at, mask=chunk < num_chunks, other=0.0)
        masses = tl.where(is_usable, masses, target)
        num_accepted = tl.load(num_accepted_ptr + request)
        position = tl.load(position_ptr + request) + num_accepted
        uniform = keyed_uniform(tl.load(seed_ptr + request), position, RESIDUAL)
        found, left = find_share(masses, chunk, uniform * tl.sum(masses, axis=0))
        column = tl.maximum(found, 0) * CHUNK_VOCAB + tl.arange(0, CHUNK_VOCAB)
        p, q = _both(
            logit_ptr, temperature_ptr, slot_ptr, maximum_ptr, cut_ptr, mass_ptr, drafted_ptr,
            drafted_scale_ptr, drafted_maximum_ptr, drafted_mass_ptr, num_accepted_ptr,
            request, row, column, vocab_size, NUM_POSITIONS,
        )  # fmt: skip
        token, _ = find_share(tl.where(is_usable, tl.maximum(p - q, 0.0), p), column, left)
        out_ptr = out_token_ptr + request * (NUM_POSITIONS + 1) + num_accepted
        tl.store(out_ptr, tl.maximum(token, 0).to(tl.int64))


@triton.jit
def _rejecting_row(start_loc_ptr, temperature_ptr, own_ptr, num_accepted_ptr, faulty_ptr, request):
    """Row of the first rejected draft, and whether its token is to be replaced by a sample."""
    start = tl.load(start_loc_ptr + request)
    num_drafts = tl.load(start_loc_ptr + request + 1) - start - 1
    num_accepted = tl.load(num_accepted_ptr + request)
    is_rejected = num_accepted < num_drafts
    is_rejected &= goes_through_test(temperature_ptr, own_ptr, request)
    return start + num_accepted, is_rejected & (tl.load(faulty_ptr + request) == 0)


@triton.jit
def _both(
    logit_ptr,
    temperature_ptr,
    slot_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    drafted_ptr,
    drafted_scale_ptr,
    drafted_maximum_ptr,
    drafted_mass_ptr,
    num_accepted_ptr,
    request,
    row,
    column,
    vocab_size,
    NUM_POSITIONS: tl.constexpr,
):
    """p and q of a block of tokens at the row; float64."""
    p = weights_of(
        logit_ptr + row.to(tl.int64) * vocab_size,
        column,
        log2_scale(tl.load(temperature_ptr + request)),
        tl.load(maximum_ptr + row),
        tl.load(cut_ptr + row),
        vocab_size,
    )
    slot = request.to(tl.int64)
    if slot_ptr is not None:
        slot = tl.load(slot_ptr + request)
    at = slot * NUM_POSITIONS + tl.load(num_accepted_ptr + request)
    is_token = column < vocab_size
    drafted = drafted_ptr + at * vocab_size + column
    depth = tl.load(drafted, mask=is_token, other=float("-inf"))
    depth -= tl.load(drafted_maximum_ptr + at)
    q = tl.exp2(depth * (tl.load(drafted_scale_ptr + at) * _LOG2_E)).to(tl.float64)
    q *= 1.0 / tl.load(drafted_mass_ptr + at).to(tl.float64)
    return p * (1.0 / tl.load(mass_ptr + row)), q
