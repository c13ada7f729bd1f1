"""Kernels of `verify_drafts` that sample at rows of logits, from what their chunks sum up to."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.candidates import collect_candidates
from specsched_kernels.triton.cuts import cut_of, guess_threshold, lowest_likely
from specsched_kernels.triton.row_statistics import (
    chunk_masses,
    largest_of_chunks,
    needs_sample,
    request_of,
)
from specsched_kernels.triton.uniforms import SAMPLE, keyed_uniform
from specsched_kernels.triton.vocabulary import (
    LOWEST_KEY,
    draw_target,
    find_share,
    log2_scale,
    mass_of,
    weights_of,
)

__all__ = ["NO_CUT", "sample_kernel", "search_kernel"]

NO_CUT = tl.constexpr(-1)


@triton.jit(do_not_specialize=["num_requests"])
def sample_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    verify_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    seed_ptr,
    own_ptr,
    chunk_maximum_ptr,
    chunk_token_ptr,
    chunk_mass_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    num_candidates_ptr,
    candidate_logit_ptr,
    candidate_token_ptr,
    vocab_size,
    num_requests,
    num_chunks,
    BLOCK_REQUESTS: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNK_VOCAB: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    ONLY_LAST: tl.constexpr,
):
    """Largest logit, mass and sample of a row; of one that anything cuts, its candidates."""
    row = tl.program_id(0)
    if row < tl.load(start_loc_ptr + num_requests):
        request = request_of(start_loc_ptr, row, num_requests, BLOCK_REQUESTS)
        temperature = tl.load(temperature_ptr + request)
        maximum, token = largest_of_chunks(
            chunk_maximum_ptr, chunk_token_ptr, row, num_chunks, NUM_CHUNKS
        )
        num_candidates = tl.full([], NO_CUT, tl.int32)
        if (temperature > 0.0) & (tl.abs(maximum) < float("inf")):
            row_ptr = logit_ptr + row.to(tl.int64) * vocab_size
            scale = log2_scale(temperature)
            masses = chunk_masses(
                chunk_maximum_ptr, chunk_mass_ptr, row, maximum, scale, num_chunks, NUM_CHUNKS
            )
            mass = tl.sum(masses, axis=0)
            tl.store(mass_ptr + row, mass)
            top_k = tl.load(top_k_ptr + request)
            top_p = tl.load(top_p_ptr + request)
            offset = row - tl.load(start_loc_ptr + request)
            cuts_count = (top_k > 0) & (top_k < vocab_size)
            lowest = lowest_likely(min_p_ptr, request, maximum, temperature)
            is_cut_by_min_p = lowest > float("-inf")
            if cuts_count | (top_p < 1.0) | is_cut_by_min_p:
                first = row.to(tl.int64) * MAX_CANDIDATES
                num_candidates += MAX_CANDIDATES + 2
                # Generous at first: half as many again, half of what may be left out.
                excess = 0.5
                while (excess > 0.1) & (num_candidates > MAX_CANDIDATES):
                    threshold = lowest
                    if (vocab_size > MAX_CANDIDATES) & (is_cut_by_min_p == 0):
                        min_count = tl.where(cuts_count, (1.0 + excess) * top_k, 0.0)
                        min_count = tl.maximum(min_count, MAX_CANDIDATES / 4.0)
                        left_out = (1.0 - excess) * (1.0 - top_p) * mass.to(tl.float32)
                        left_out = tl.where(cuts_count, float("inf"), left_out)
                        threshold = guess_threshold(
                            row_ptr, maximum, scale, min_count, left_out, vocab_size
                        )
                    num_candidates = collect_candidates(
                        row_ptr,
                        candidate_logit_ptr + first,
                        candidate_token_ptr + first,
                        threshold,
                        vocab_size,
                        BLOCK_VOCAB,
                        MAX_CANDIDATES,
                    )
                    excess *= tl.where(is_cut_by_min_p, 0.0, 0.4)
            elif needs_sample(verify_ptr, own_ptr, request, offset, ONLY_LAST):
                position = tl.load(position_ptr + request) + offset
                uniform = keyed_uniform(tl.load(seed_ptr + request), position, SAMPLE)
                chunk, left = find_share(masses, tl.arange(0, NUM_CHUNKS), uniform * mass)
                column = tl.maximum(chunk, 0) * CHUNK_VOCAB + tl.arange(0, CHUNK_VOCAB)
                weight = weights_of(row_ptr, column, scale, maximum, LOWEST_KEY, vocab_size)
                drawn, _ = find_share(weight, column, left)
                token = tl.where(drawn >= 0, drawn, token)
        tl.store(maximum_ptr + row, maximum)
        tl.store(token_ptr + row, token.to(tl.int64))
        tl.store(cut_ptr + row, LOWEST_KEY)
        tl.store(num_candidates_ptr + row, num_candidates)


@triton.jit(do_not_specialize=["num_requests"])
def search_kernel(
    logit_ptr,
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
    vocab_size,
    num_requests,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    ONLY_LAST: tl.constexpr,
):
    """Cut, kept mass and sample of the rows, few or none, that their candidates did not settle."""
    for row in range(tl.program_id(0), tl.load(start_loc_ptr + num_requests), tl.num_programs(0)):
        if tl.load(num_candidates_ptr + row) > MAX_CANDIDATES:
            request = request_of(start_loc_ptr, row, num_requests, BLOCK_REQUESTS)
            temperature = tl.load(temperature_ptr + request)
            scale = log2_scale(temperature)
            maximum = tl.load(maximum_ptr + row)
            row_ptr = logit_ptr + tl.cast(row, tl.int64) * vocab_size
            top_k = tl.load(top_k_ptr + request).to(tl.int32)
            top_p = tl.load(top_p_ptr + request).to(tl.float64)
            mass = tl.load(mass_ptr + row)
            lowest = lowest_likely(min_p_ptr, request, maximum, temperature)
            cut = cut_of(
                row_ptr, scale, maximum, lowest, top_k, top_p, mass, vocab_size, BLOCK_VOCAB
            )
            mass = mass_of(row_ptr, scale, maximum, cut, vocab_size, BLOCK_VOCAB)
            tl.store(cut_ptr + row, cut)
            tl.store(mass_ptr + row, mass)
            offset = row - tl.load(start_loc_ptr + request)
            if needs_sample(verify_ptr, own_ptr, request, offset, ONLY_LAST):
                position = tl.load(position_ptr + request) + offset
                target = keyed_uniform(tl.load(seed_ptr + request), position, SAMPLE) * mass
                likeliest = tl.load(token_ptr + row).to(tl.int32)
                token = draw_target(
                    row_ptr, scale, maximum, cut, target, likeliest, vocab_size, BLOCK_VOCAB
                )
                tl.store(token_ptr + row, token.to(tl.int64))
