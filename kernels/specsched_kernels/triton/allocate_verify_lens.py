"""Device code of `allocate_verify_lens`: a threshold by bisection over the bits of the scores.

Scores are never negative, so as int32 their bits order as the floats do, and since they never rise
along a draft, counting those at or above a threshold gives a prefix of each request. No sort, no
second launch: every program finds the same threshold for itself (a batch is small, its confidences
stay in the L2 cache) and lays out its own block of rows. One request per lane, its drafts in
registers, so that an iteration costs one reduction across the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.allocate_verify_lens import AllocationInputs
from specsched_kernels.triton.allocation_rows import load_base, store_rows, store_start_locs

if TYPE_CHECKING:
    from specsched_kernels.allocate_verify_lens import VerifyAllocation

__all__ = ["allocate_verify_lens"]

_BLOCK_ROWS = 512
_BLOCKS_REQUESTS = (16, 64, 256, 512, 1024)
_MAX_WARPS = 8
_ABOVE_ALL_SCORES = tl.constexpr(0x7F800000)
_STEPS_PER_TIGHTENING = tl.constexpr(12)
_LARGEST_WEIGHT = tl.constexpr(3.4028234663852886e38)


def allocate_verify_lens(inputs: AllocationInputs, out: VerifyAllocation) -> None:
    """Fill `out` in one launch, see `specsched_kernels.allocate_verify_lens`."""
    num_requests = inputs.num_draft_tokens.shape[0]
    padded_rows, padded_logits = out.row_to_request.shape[0], out.logit_rows.shape[0]
    block_requests = next(block for block in _BLOCKS_REQUESTS if block >= num_requests)
    num_programs = triton.cdiv(max(padded_rows, padded_logits, 1), _BLOCK_ROWS)
    _allocate_kernel[(num_programs,)](
        inputs.confidence,
        inputs.slot_ids,
        inputs.num_draft_tokens,
        inputs.weights,
        inputs.budget,
        inputs.prior,
        inputs.max_verify_len,
        inputs.num_base_rows,
        inputs.samples,
        inputs.start_positions,
        out.verify_lens,
        out.query_start_loc,
        out.row_to_request,
        out.row_positions,
        out.logit_start_loc,
        out.logit_rows,
        num_requests,
        padded_rows,
        padded_logits,
        BUDGET_IN_MEMORY=isinstance(inputs.budget, torch.Tensor),
        CAP_IN_MEMORY=isinstance(inputs.max_verify_len, torch.Tensor),
        NUM_POSITIONS=inputs.confidence.shape[1],
        BLOCK_REQUESTS=block_requests,
        LOG_BLOCK_REQUESTS=block_requests.bit_length() - 1,
        BLOCK_ROWS=_BLOCK_ROWS,
        num_warps=min(max(block_requests // 32, 4), _MAX_WARPS),
    )


@triton.jit(
    do_not_specialize=[
        "budget",
        "max_verify_len",
        "num_requests",
        "padded_rows",
        "padded_logits",
    ]
)
def _allocate_kernel(
    confidence_ptr,
    slot_ptr,
    num_draft_ptr,
    weight_ptr,
    budget,
    prior_ptr,
    max_verify_len,
    base_ptr,
    samples_ptr,
    start_ptr,
    verify_ptr,
    query_loc_ptr,
    row_to_request_ptr,
    row_position_ptr,
    logit_loc_ptr,
    logit_row_ptr,
    num_requests,
    padded_rows,
    padded_logits,
    BUDGET_IN_MEMORY: tl.constexpr,
    CAP_IN_MEMORY: tl.constexpr,
    NUM_POSITIONS: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    LOG_BLOCK_REQUESTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    request = tl.arange(0, BLOCK_REQUESTS)
    live = request < num_requests
    base, samples = load_base(base_ptr, samples_ptr, request, live)
    present = tl.load(num_draft_ptr + request, mask=live & samples, other=0)
    present = tl.minimum(tl.maximum(present, 0), NUM_POSITIONS)
    if CAP_IN_MEMORY:
        cap = tl.load(max_verify_len + request, mask=live, other=0)
        present = tl.minimum(present, tl.maximum(cap, 0))
    elif max_verify_len is not None:
        present = tl.minimum(present, max_verify_len)
    weight = tl.load(weight_ptr + request, mask=live, other=0.0)
    slot = request
    if slot_ptr is not None:
        slot = tl.load(slot_ptr + request, mask=live, other=0)
    bits = _score_bits(confidence_ptr, prior_ptr, slot, weight, present, NUM_POSITIONS)

    # One reduction for three sums: base rows, drafts present, requests that sample.
    packed = base.to(tl.int64) + (present.to(tl.int64) << 32) + (samples.to(tl.int64) << 48)
    sums = tl.sum(packed, axis=0)
    num_base = (sums & 0xFFFFFFFF).to(tl.int32)
    num_present = ((sums >> 32) & 0xFFFF).to(tl.int32)
    num_sampling = (sums >> 48).to(tl.int32)
    if BUDGET_IN_MEMORY:
        budget = tl.load(budget)
    budget = tl.minimum(budget, tl.minimum(padded_rows - num_base, padded_logits - num_sampling))
    budget = tl.maximum(tl.minimum(budget, num_present), 0)
    verify_len = _verify_lens(bits, num_present, budget, NUM_POSITIONS)

    program = tl.program_id(0)
    if program == 0:
        tl.store(verify_ptr + request, verify_len, mask=live)
    store_start_locs(query_loc_ptr, logit_loc_ptr, request, live, base, verify_len, samples)
    tl.debug_barrier()
    row = program * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    store_rows(
        row,
        num_base + budget,
        query_loc_ptr,
        logit_loc_ptr,
        base_ptr,
        samples_ptr,
        start_ptr,
        row_to_request_ptr,
        row_position_ptr,
        logit_row_ptr,
        num_requests,
        padded_rows,
        padded_logits,
        LOG_BLOCK_REQUESTS,
    )
    is_padding = (row >= num_sampling + budget) & (row < padded_logits)
    tl.store(logit_row_ptr + row, tl.zeros_like(row).to(tl.int64), mask=is_padding)


# ===================== Ranking =====================


@triton.jit
def _score_bits(confidence_ptr, prior_ptr, slot, weight, present, NUM_POSITIONS: tl.constexpr):
    """Bits of weight * survival, an int32 vector per draft position; -1 where no draft is."""
    weight = tl.minimum(tl.where(weight > 0, weight, 0.0), _LARGEST_WEIGHT)
    survival = tl.full(weight.shape, 1.0, tl.float32)
    row_ptr = confidence_ptr + slot.to(tl.int64) * NUM_POSITIONS
    bits = ()
    for position in tl.static_range(NUM_POSITIONS):
        is_draft = present > position
        value = tl.load(row_ptr + position, mask=is_draft, other=0.0)
        prior = tl.load(prior_ptr + position)
        value = tl.where((value >= 0) & (value <= 1), value, prior)
        value = tl.where((value >= 0) & (value <= 1), tl.abs(value), 0.0)
        survival = survival * value
        score = (weight * survival).to(tl.int32, bitcast=True)
        bits = bits + (tl.where(is_draft, score, -1),)  # type: ignore[assignment]
    return bits


@triton.jit
def _prefix_at_least(bits, threshold, NUM_POSITIONS: tl.constexpr):
    """Drafts of each request whose score is at least the threshold: a prefix."""
    length = (bits[0] >= threshold).to(tl.int32)
    for position in tl.static_range(1, NUM_POSITIONS):
        length += (bits[position] >= threshold).to(tl.int32)
    return length


@triton.jit
def _tighten(bits, low, high, NUM_POSITIONS: tl.constexpr):
    """Smallest score in [low, high), and one past the largest: no count changes at either end."""
    smallest = tl.where(bits[0] >= low, bits[0], _ABOVE_ALL_SCORES)
    largest = tl.where(bits[0] < high, bits[0], -1)
    for position in tl.static_range(1, NUM_POSITIONS):
        at_least = tl.where(bits[position] >= low, bits[position], _ABOVE_ALL_SCORES)
        smallest = tl.minimum(smallest, at_least)
        largest = tl.maximum(largest, tl.where(bits[position] < high, bits[position], -1))
    return tl.min(smallest, axis=0), tl.max(largest, axis=0) + 1


@triton.jit
def _verify_lens(bits, num_present, budget, NUM_POSITIONS: tl.constexpr):
    """Take exactly `budget` drafts, with `low` rising to the score of the last one taken.

    Stops early once a threshold separates just as many. Ends that move to scores that occur make a
    run of equal scores end the search at once, where halving alone would go on to the last bit.
    """
    low = 0
    num_at_low = num_present
    high = _ABOVE_ALL_SCORES
    step = 0
    while (num_at_low != budget) & (high - low > 1):
        if step % _STEPS_PER_TIGHTENING == 0:
            low, high = _tighten(bits, low, high, NUM_POSITIONS)
        middle = low + (high - low) // 2
        count = tl.sum(_prefix_at_least(bits, middle, NUM_POSITIONS), axis=0)
        if count >= budget:
            low = middle
            num_at_low = count
        else:
            high = middle
        step += 1
    verify_len = _prefix_at_least(bits, low, NUM_POSITIONS)
    if num_at_low != budget:
        above = _prefix_at_least(bits, low + 1, NUM_POSITIONS)
        verify_len = _break_ties(above, verify_len, budget, NUM_POSITIONS)
    return verify_len


@triton.jit
def _break_ties(above, at_least, budget, NUM_POSITIONS: tl.constexpr):
    """Of the tied drafts above[r] <= j < at_least[r] take the first by position, then request."""
    num_open = budget - tl.sum(above, axis=0)
    low = 0
    num_below_low = 0
    high = NUM_POSITIONS
    while high - low > 1:
        middle = (low + high) // 2
        count = tl.sum(tl.maximum(tl.minimum(at_least, middle) - above, 0), axis=0)
        if count <= num_open:
            low = middle
            num_below_low = count
        else:
            high = middle
    is_tied = ((above <= low) & (at_least > low)).to(tl.int32)
    rank = tl.cumsum(is_tied, axis=0) - is_tied
    is_taken = (is_tied != 0) & (rank < num_open - num_below_low)
    return tl.maximum(tl.minimum(at_least, low), above) + is_taken.to(tl.int32)
