"""Device code of `verify_drafts`: one program per logit row, then one per request.

The row kernel finds the largest logit, where top-k and top-p cut, the sum of what is left, and the
token that the request would sample there. The request kernel compares drafts with those tokens, or
runs the accept tests and the residual sample of drafts that came with a distribution. Cuts are
found by bisection over the bits of the scaled logits, not by a sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.verify_drafts import SamplingInputs
from specsched_kernels.triton.uniforms import ACCEPT, RESIDUAL, SAMPLE, keyed_uniform

if TYPE_CHECKING:
    from specsched_kernels.verify_drafts import VerifyOutcome

__all__ = ["verify_drafts"]

_BLOCK_VOCAB = 4096
_LOWEST = tl.constexpr(-0x7FFFFFFF)


def verify_drafts(inputs: SamplingInputs, out: VerifyOutcome) -> None:
    """Fill `out` in two launches, see `specsched_kernels.verify_drafts`."""
    num_rows, vocab_size = inputs.logits.shape
    num_requests, max_draft_tokens = inputs.draft_token_ids.shape
    if num_requests == 0:
        return
    device = inputs.logits.device
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    maxima = torch.empty(num_rows, dtype=torch.float32, device=device)
    cuts = torch.empty(num_rows, dtype=torch.int32, device=device)
    sums = torch.empty(num_rows, dtype=torch.float64, device=device)
    block_vocab = min(_BLOCK_VOCAB, triton.next_power_of_2(vocab_size))
    is_stochastic = inputs.draft_distribution is not None
    shared = (inputs.logits, inputs.logit_start_loc, inputs.output_positions)
    state = (inputs.temperature, inputs.seeds, tokens, maxima, cuts, sums, vocab_size)
    _row_kernel[(num_rows,)](
        *shared,
        inputs.verify_lens,
        inputs.top_k,
        inputs.top_p,
        *state,
        num_requests,
        LOG_REQUESTS=num_requests.bit_length(),
        ONLY_LAST=is_stochastic,
        BLOCK_VOCAB=block_vocab,
        num_warps=8,
    )
    _request_kernel[(num_requests,)](
        *shared,
        inputs.draft_token_ids,
        inputs.draft_distribution,
        *state,
        out.token_ids,
        out.num_accepted,
        out.faulty,
        NUM_POSITIONS=max_draft_tokens,
        BLOCK_POSITIONS=triton.next_power_of_2(max_draft_tokens + 1),
        BLOCK_VOCAB=block_vocab,
        num_warps=8 if is_stochastic else 1,
    )


# ===================== Rows =====================


@triton.jit(do_not_specialize=["num_requests"])
def _row_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    verify_ptr,
    top_k_ptr,
    top_p_ptr,
    temperature_ptr,
    seed_ptr,
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
    row = tl.program_id(0)
    if row < tl.load(start_loc_ptr + num_requests):
        low = 0
        high = num_requests
        for _ in tl.static_range(LOG_REQUESTS):
            middle = (low + high) // 2
            is_past = tl.load(start_loc_ptr + middle) <= row
            low = tl.where(is_past, middle, low)
            high = tl.where(is_past, high, middle)
        temperature = tl.load(temperature_ptr + low)
        offset = row - tl.load(start_loc_ptr + low)
        row_ptr = logit_ptr + row.to(tl.int64) * vocab_size
        best, token = _largest(row_ptr, vocab_size, BLOCK_VOCAB)
        is_finite = tl.abs(best) < float("inf")
        tl.store(maximum_ptr + row, best)
        if (temperature > 0.0) & is_finite:
            top_k = tl.load(top_k_ptr + low).to(tl.int32)
            top_p = tl.load(top_p_ptr + low).to(tl.float64)
            maximum = tl.div_rn(best, temperature)
            cut = _cut_of(row_ptr, temperature, maximum, top_k, top_p, vocab_size, BLOCK_VOCAB)
            _, mass = _count_and_mass(row_ptr, temperature, maximum, cut, vocab_size, BLOCK_VOCAB)
            tl.store(cut_ptr + row, cut)
            tl.store(sum_ptr + row, mass)
            is_wanted = (offset == tl.load(verify_ptr + low)) | (not ONLY_LAST)
            if is_wanted:
                position = tl.load(position_ptr + low) + offset
                target = keyed_uniform(tl.load(seed_ptr + low), position, SAMPLE) * mass
                token = _draw_target(
                    row_ptr, temperature, maximum, cut, target, token, vocab_size, BLOCK_VOCAB
                )
        tl.store(token_ptr + row, token.to(tl.int64))


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


@triton.jit
def _order_key(scaled):
    """int32 that orders as the float does; -0 and 0 are one."""
    bits = (scaled + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@triton.jit
def _weights(row_ptr, column, temperature, maximum, cut, vocab_size):
    """exp((logit - largest) / temperature) from the cut up, else 0; float64."""
    logit = tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))
    scaled = tl.div_rn(logit, temperature)
    weight = tl.exp(scaled - maximum).to(tl.float64)
    is_kept = (_order_key(scaled) >= cut) & (column < vocab_size)
    return tl.where(is_kept, weight, 0.0), is_kept


@triton.jit
def _count_and_mass(row_ptr, temperature, maximum, cut, vocab_size, BLOCK_VOCAB: tl.constexpr):
    count = 0
    mass = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab_size, BLOCK_VOCAB):
        column = start + tl.arange(0, BLOCK_VOCAB)
        weight, is_kept = _weights(row_ptr, column, temperature, maximum, cut, vocab_size)
        count += tl.sum(is_kept.to(tl.int32), axis=0)
        mass += tl.sum(weight, axis=0)
    return count, mass


@triton.jit
def _cut_of(row_ptr, temperature, maximum, top_k, top_p, vocab_size, BLOCK_VOCAB: tl.constexpr):
    """Largest cut that keeps top_k tokens and, of their mass, the share top_p."""
    cut = tl.full([], _LOWEST, tl.int32)
    high = _order_key(maximum) + 1
    if (top_k > 0) & (top_k < vocab_size):
        num_at_cut = vocab_size
        while (high > cut + 1) & (num_at_cut != top_k):
            middle = (cut >> 1) + (high >> 1) + (cut & high & 1)
            count, _ = _count_and_mass(
                row_ptr, temperature, maximum, middle, vocab_size, BLOCK_VOCAB
            )
            if count >= top_k:
                cut = middle
                num_at_cut = count
            else:
                high = middle
    if top_p < 1.0:
        _, kept = _count_and_mass(row_ptr, temperature, maximum, cut, vocab_size, BLOCK_VOCAB)
        high = _order_key(maximum) + 1
        while high > cut + 1:
            middle = (cut >> 1) + (high >> 1) + (cut & high & 1)
            _, mass = _count_and_mass(
                row_ptr, temperature, maximum, middle, vocab_size, BLOCK_VOCAB
            )
            if mass >= top_p * kept:
                cut = middle
            else:
                high = middle
    return cut


@triton.jit
def _draw_target(
    row_ptr, temperature, maximum, cut, target, fallback, vocab_size, BLOCK_VOCAB: tl.constexpr
):
    """First token whose cumulative weight exceeds the target, else (rounding) the fallback."""
    token = -1
    before = tl.full([], 0.0, tl.float64)
    start = 0
    while (token < 0) & (start < vocab_size):
        column = start + tl.arange(0, BLOCK_VOCAB)
        weight, _ = _weights(row_ptr, column, temperature, maximum, cut, vocab_size)
        token, before = _search_block(weight, column, before, target)
        start += BLOCK_VOCAB
    return tl.where(token < 0, fallback, token)


@triton.jit
def _search_block(weight, column, before, target):
    """Token of the block that covers the target, -1 if none does; the sum up to the block's end."""
    block = tl.sum(weight, axis=0)
    token = -1
    if before + block > target:
        is_past = (before + tl.cumsum(weight, axis=0) > target) & (weight > 0.0)
        token = tl.min(tl.where(is_past, column, 0x7FFFFFFF), axis=0)
        token = tl.where(token == 0x7FFFFFFF, -1, token)
    return token, before + block


# ===================== Requests =====================


@triton.jit
def _request_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    draft_ptr,
    distribution_ptr,
    temperature_ptr,
    seed_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    sum_ptr,
    vocab_size,
    out_token_ptr,
    num_accepted_ptr,
    faulty_ptr,
    NUM_POSITIONS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(start_loc_ptr + request)
    num_rows = tl.load(start_loc_ptr + request + 1) - start
    offset = tl.arange(0, BLOCK_POSITIONS)
    is_row = offset < num_rows
    is_draft = offset < num_rows - 1
    token = tl.load(token_ptr + start + offset, mask=is_row, other=0)
    draft = tl.load(draft_ptr + request * NUM_POSITIONS + offset, mask=is_draft, other=0)
    maximum = tl.load(maximum_ptr + start + offset, mask=is_row, other=0.0)
    is_faulty = (tl.abs(maximum) < float("inf")) == 0
    maximum = tl.where(is_faulty, 0.0, maximum)
    accepted = is_draft & (token == draft)
    temperature = tl.load(temperature_ptr + request)
    seed = tl.load(seed_ptr + request)
    position = tl.load(position_ptr + request) + offset
    if distribution_ptr is not None:
        if temperature > 0.0:
            row = (start + offset).to(tl.int64)
            drafted_ptr = distribution_ptr + (request * NUM_POSITIONS + offset) * vocab_size
            q = tl.load(drafted_ptr + draft, mask=is_draft, other=1.0).to(tl.float64)
            logit = tl.load(logit_ptr + row * vocab_size + draft, mask=is_draft, other=0.0)
            scaled = tl.div_rn(logit, temperature)
            cut = tl.load(cut_ptr + row, mask=is_draft & (is_faulty == 0), other=0)
            mass = tl.load(sum_ptr + row, mask=is_draft & (is_faulty == 0), other=1.0)
            p = tl.exp(scaled - tl.div_rn(maximum, temperature)).to(tl.float64) / mass
            p = tl.where(_order_key(scaled) >= cut, p, 0.0)
            accepted = is_draft & (keyed_uniform(seed, position, ACCEPT) * q < p)
    accepted = accepted & (is_faulty == 0)
    num_accepted = tl.min(tl.where(accepted, BLOCK_POSITIONS, offset), axis=0)
    num_accepted = tl.maximum(tl.minimum(num_accepted, num_rows - 1), 0)
    is_needed_fault = is_faulty & (offset <= num_accepted) & is_row
    faulty = tl.max(is_needed_fault.to(tl.int32), axis=0)
    if distribution_ptr is not None:
        if (temperature > 0.0) & (num_accepted < num_rows - 1) & (faulty == 0):
            row = (start + num_accepted).to(tl.int64)
            final = _draw_residual(
                logit_ptr + row * vocab_size,
                distribution_ptr + (request * NUM_POSITIONS + num_accepted) * vocab_size,
                temperature,
                tl.div_rn(tl.load(maximum_ptr + row), temperature),
                tl.load(cut_ptr + row),
                tl.load(sum_ptr + row),
                keyed_uniform(seed, tl.load(position_ptr + request) + num_accepted, RESIDUAL),
                vocab_size,
                BLOCK_VOCAB,
            )
            token = tl.where(offset == num_accepted, final, token)
    token = tl.where(offset < num_accepted, draft, token)
    token = tl.where((offset <= num_accepted) & is_row, token, 0)
    out_ptr = out_token_ptr + request * (NUM_POSITIONS + 1) + offset
    tl.store(out_ptr, token, mask=offset <= NUM_POSITIONS)
    tl.store(num_accepted_ptr + request, num_accepted)
    tl.store(faulty_ptr + request, faulty != 0)


@triton.jit
def _residual(row_ptr, drafted_ptr, column, temperature, maximum, cut, mass, vocab_size):
    """max(p - q, 0) in a block of the vocabulary."""
    weight, _ = _weights(row_ptr, column, temperature, maximum, cut, vocab_size)
    drafted = tl.load(drafted_ptr + column, mask=column < vocab_size, other=0.0)
    return tl.maximum(weight / mass - drafted.to(tl.float64), 0.0)


@triton.jit
def _draw_residual(
    row_ptr,
    drafted_ptr,
    temperature,
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
            _residual(row_ptr, drafted_ptr, column, temperature, maximum, cut, mass, vocab_size),
            axis=0,
        )
    token = -1
    last = 0
    before = tl.full([], 0.0, tl.float64)
    start = 0
    while (token < 0) & (start < vocab_size):
        column = start + tl.arange(0, BLOCK_VOCAB)
        weight = _residual(
            row_ptr, drafted_ptr, column, temperature, maximum, cut, mass, vocab_size
        )
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, column, 0), axis=0))
        token, before = _search_block(weight, column, before, uniform * left)
        start += BLOCK_VOCAB
    token = tl.where(token < 0, last, token)
    if left <= 0.0:
        token = _draw_target(
            row_ptr, temperature, maximum, cut, uniform * mass, token, vocab_size, BLOCK_VOCAB
        )
    return token.to(tl.int64)
