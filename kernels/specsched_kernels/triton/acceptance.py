"""Which drafts of a request are accepted, from what its rows would sample or from p and q."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.uniforms import ACCEPT, keyed_uniform
from specsched_kernels.triton.vocabulary import log2_scale, order_key

__all__ = ["goes_through_test", "judge_kernel"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def goes_through_test(temperature_ptr, own_ptr, request):
    """Whether drafts of a request are accepted by p and q, not by comparison with a sample."""
    is_tested = tl.load(temperature_ptr + request) > 0.0
    if own_ptr is not None:
        is_tested &= tl.load(own_ptr + request) == 0
    return is_tested


@triton.jit
def judge_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    temperature_ptr,
    seed_ptr,
    own_ptr,
    slot_ptr,
    draft_ptr,
    drafted_ptr,
    drafted_scale_ptr,
    drafted_maximum_ptr,
    drafted_mass_ptr,
    token_ptr,
    maximum_ptr,
    cut_ptr,
    mass_ptr,
    out_token_ptr,
    num_accepted_ptr,
    faulty_ptr,
    vocab_size,
    NUM_POSITIONS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
):
    """Accepted prefix and tokens of a request, but for those that a residual takes the place of."""
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(start_loc_ptr + request)
    num_rows = tl.load(start_loc_ptr + request + 1) - start
    slot = request
    if slot_ptr is not None:
        slot = tl.maximum(tl.load(slot_ptr + request), 0)
    offset = tl.arange(0, BLOCK_POSITIONS)
    is_row = offset < num_rows
    is_draft = offset < num_rows - 1
    token = tl.load(token_ptr + start + offset, mask=is_row, other=0)
    draft = tl.load(draft_ptr + slot * NUM_POSITIONS + offset, mask=is_draft, other=0)
    maximum = tl.load(maximum_ptr + start + offset, mask=is_row, other=0.0)
    is_faulty = (tl.abs(maximum) < float("inf")) == 0
    accepted = is_draft & (token == draft)
    temperature = tl.load(temperature_ptr + request)
    if drafted_ptr is not None:
        if goes_through_test(temperature_ptr, own_ptr, request):
            is_sound = is_draft & (is_faulty == 0)
            row = (start + offset).to(tl.int64)
            logit = tl.load(logit_ptr + row * vocab_size + draft, mask=is_sound, other=0.0)
            cut = tl.load(cut_ptr + row, mask=is_sound, other=0)
            mass = tl.load(mass_ptr + row, mask=is_sound, other=1.0)
            weight = tl.exp2((logit - tl.where(is_sound, maximum, 0.0)) * log2_scale(temperature))
            p = tl.where(order_key(logit) >= cut, weight.to(tl.float64) / mass, 0.0)
            at = slot * NUM_POSITIONS + offset
            drafted = tl.load(drafted_ptr + at * vocab_size + draft, mask=is_draft, other=0.0)
            depth = drafted - tl.load(drafted_maximum_ptr + at, mask=is_draft, other=0.0)
            scale = tl.load(drafted_scale_ptr + at, mask=is_draft, other=1.0) * _LOG2_E
            q = tl.exp2(depth * scale).to(tl.float64)
            q /= tl.load(drafted_mass_ptr + at, mask=is_draft, other=1.0)
            position = tl.load(position_ptr + request) + offset
            uniform = keyed_uniform(tl.load(seed_ptr + request), position, ACCEPT)
            accepted = is_draft & (uniform * q < p)
    accepted = accepted & (is_faulty == 0)
    num_accepted = tl.min(tl.where(accepted, BLOCK_POSITIONS, offset), axis=0)
    num_accepted = tl.maximum(tl.minimum(num_accepted, num_rows - 1), 0)
    is_needed_fault = is_faulty & (offset <= num_accepted) & is_row
    token = tl.where(offset < num_accepted, draft, token)
    token = tl.where((offset <= num_accepted) & is_row, token, 0)
    out_ptr = out_token_ptr + request * (NUM_POSITIONS + 1) + offset
    tl.store(out_ptr, token, mask=offset <= NUM_POSITIONS)
    tl.store(num_accepted_ptr + request, num_accepted)
    tl.store(faulty_ptr + request, tl.max(is_needed_fault.to(tl.int32), axis=0) != 0)
