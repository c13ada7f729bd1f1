"""Device code of `verify_drafts`: three kernels with a program per logit row, one per request.

The row kernels find the largest logit, where top-k and top-p cut (done at once where neither does),
the sum of what is left and the token that the request would sample there. The request kernel
compares drafts with those tokens, or runs the accept tests and the residual sample of drafts that
came with a distribution. Cuts are found by search over the bits of the logits, not by a sort; the
search takes many registers, which is why it is a kernel of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.verify_drafts import SamplingInputs
from specsched_kernels.triton.search_depth import search_depth
from specsched_kernels.triton.uniforms import ACCEPT, RESIDUAL, keyed_uniform
from specsched_kernels.triton.verify_rows import cut_kernel, largest_kernel, sample_kernel
from specsched_kernels.triton.vocabulary import draw_residual, order_key

if TYPE_CHECKING:
    from specsched_kernels.verify_drafts import VerifyOutcome

__all__ = ["verify_drafts"]

_BLOCK_VOCAB = 4096
_BLOCK_CUT = 1024
_LOG2_E = tl.constexpr(1.4426950408889634)


def verify_drafts(inputs: SamplingInputs, out: VerifyOutcome) -> None:
    """Fill `out` in four launches, see `specsched_kernels.verify_drafts`."""
    num_rows, vocab_size = inputs.logits.shape
    num_requests, max_draft_tokens = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[1]
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
    keys = (inputs.temperature, inputs.seeds, inputs.keeps_own_sample)
    state = (*keys, tokens, maxima, cuts, sums, vocab_size)
    search = {"num_requests": num_requests, "LOG_REQUESTS": search_depth(num_requests)}
    largest_kernel[(num_rows,)](
        inputs.logits,
        inputs.logit_start_loc,
        tokens,
        maxima,
        vocab_size,
        num_requests,
        BLOCK_VOCAB=block_vocab,
        num_warps=8,
    )
    cut_kernel[(num_rows,)](
        inputs.logits,
        inputs.logit_start_loc,
        inputs.top_k,
        inputs.top_p,
        inputs.temperature,
        maxima,
        cuts,
        vocab_size,
        **search,
        BLOCK_VOCAB=min(_BLOCK_CUT, block_vocab),
        num_warps=8,
    )
    sample_kernel[(num_rows,)](
        *shared,
        inputs.verify_lens,
        *state,
        **search,
        ONLY_LAST=is_stochastic,
        BLOCK_VOCAB=block_vocab,
        num_warps=8,
    )
    _request_kernel[(num_requests,)](
        *shared,
        inputs.slot_ids,
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


@triton.jit
def _request_kernel(
    logit_ptr,
    start_loc_ptr,
    position_ptr,
    slot_ptr,
    draft_ptr,
    distribution_ptr,
    temperature_ptr,
    seed_ptr,
    own_ptr,
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
    maximum = tl.where(is_faulty, 0.0, maximum)
    accepted = is_draft & (token == draft)
    temperature = tl.load(temperature_ptr + request)
    seed = tl.load(seed_ptr + request)
    position = tl.load(position_ptr + request) + offset
    judges = temperature > 0.0
    if own_ptr is not None:
        judges &= tl.load(own_ptr + request) == 0
    if distribution_ptr is not None:
        if judges:
            row = (start + offset).to(tl.int64)
            drafted_ptr = distribution_ptr + (slot * NUM_POSITIONS + offset) * vocab_size
            q = tl.load(drafted_ptr + draft, mask=is_draft, other=1.0).to(tl.float64)
            logit = tl.load(logit_ptr + row * vocab_size + draft, mask=is_draft, other=0.0)
            scale = _LOG2_E / temperature
            cut = tl.load(cut_ptr + row, mask=is_draft & (is_faulty == 0), other=0)
            mass = tl.load(sum_ptr + row, mask=is_draft & (is_faulty == 0), other=1.0)
            p = tl.exp2((logit - maximum) * scale).to(tl.float64) / mass
            p = tl.where(order_key(logit) >= cut, p, 0.0)
            accepted = is_draft & (keyed_uniform(seed, position, ACCEPT) * q < p)
    accepted = accepted & (is_faulty == 0)
    num_accepted = tl.min(tl.where(accepted, BLOCK_POSITIONS, offset), axis=0)
    num_accepted = tl.maximum(tl.minimum(num_accepted, num_rows - 1), 0)
    is_needed_fault = is_faulty & (offset <= num_accepted) & is_row
    faulty = tl.max(is_needed_fault.to(tl.int32), axis=0)
    if distribution_ptr is not None:
        if judges & (num_accepted < num_rows - 1) & (faulty == 0):
            row = (start + num_accepted).to(tl.int64)
            final = draw_residual(
                logit_ptr + row * vocab_size,
                distribution_ptr + (slot * NUM_POSITIONS + num_accepted) * vocab_size,
                _LOG2_E / temperature,
                tl.load(maximum_ptr + row),
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
