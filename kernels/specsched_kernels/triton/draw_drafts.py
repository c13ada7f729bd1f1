"""Device code of `draw_drafts`: two kernels a position, split over the vocabulary.

The first adds the Markov bias to a block of the vocabulary and leaves the block's largest logit,
its token and, for draws, its mass; so one request fills the device as many do. The second finds a
request's token among the blocks and, for a draw, within the one that its uniform falls into. What
they draw from is written once, as logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.draw_drafts import DraftDraws, MarkovBias
from specsched_kernels.triton.uniforms import DRAFT, keyed_uniform
from specsched_kernels.triton.vocabulary import find_share, log2_scale

__all__ = ["draw_drafts"]

_BLOCK_VOCAB = 128
_BLOCK_VOCAB_DRAWN = 64
_MAX_BLOCK_REQUESTS = 64
_MAX_BLOCK_RANK = 64
_LN_2 = tl.constexpr(0.6931471805599453)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


def draw_drafts(
    base_logits: torch.Tensor,
    anchor_ids: torch.Tensor,
    markov: MarkovBias,
    draws: DraftDraws | None,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.draw_drafts`."""
    num_requests, num_tokens, vocab_size = base_logits.shape
    if num_requests == 0:
        return
    block_vocab = _BLOCK_VOCAB if draws is None else _BLOCK_VOCAB_DRAWN
    device, num_blocks = base_logits.device, triton.cdiv(vocab_size, block_vocab)
    maxima, masses = torch.empty((2, num_requests, num_blocks), device=device)
    tokens = torch.empty((num_requests, num_blocks), dtype=torch.int32, device=device)
    blocks = (maxima, masses, tokens)
    rank = markov.codes.shape[1]
    block_requests = min(max(triton.next_power_of_2(num_requests), 16), _MAX_BLOCK_REQUESTS)
    kept = None if draws is None else draws.kept
    num_kept = 0 if kept is None else kept.logits.shape[1]
    for position in range(num_tokens):
        previous = anchor_ids if position == 0 else out[:, position - 1]
        _logits_kernel[(triton.cdiv(num_requests, block_requests), num_blocks)](
            base_logits,
            previous,
            markov.codes,
            markov.weights,
            None if draws is None else draws.temperatures,
            None if draws is None else draws.slot_ids,
            None if kept is None else kept.logits,
            *blocks,
            num_requests,
            vocab_size,
            position,
            base_logits.stride(0),
            previous.stride(0),
            NUM_KEPT=num_kept,
            RANK=rank,
            BLOCK_REQUESTS=block_requests,
            BLOCK_VOCAB=block_vocab,
            BLOCK_RANK=min(max(triton.next_power_of_2(rank), 16), _MAX_BLOCK_RANK),
            PRECISION="ieee" if markov.codes.dtype == torch.float32 else "tf32",
            num_warps=4,
        )
        _token_kernel[(num_requests,)](
            *blocks,
            None if draws is None else draws.temperatures,
            None if draws is None else draws.seeds,
            None if draws is None else draws.positions,
            None if draws is None else draws.step_id,
            None if draws is None else draws.slot_ids,
            None if kept is None else kept.logits,
            None if kept is None else kept.scales,
            None if kept is None else kept.maxima,
            None if kept is None else kept.masses,
            out,
            num_blocks,
            vocab_size,
            position,
            out.stride(0),
            NUM_KEPT=num_kept,
            BLOCK_VOCAB=block_vocab,
            NUM_BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=4,
        )


@triton.jit(do_not_specialize=["num_requests", "position", "previous_stride"])
def _logits_kernel(
    base_ptr,
    previous_ptr,
    code_ptr,
    weight_ptr,
    temperature_ptr,
    slot_ptr,
    kept_ptr,
    maximum_ptr,
    mass_ptr,
    token_ptr,
    num_requests,
    vocab_size,
    position,
    base_stride,
    previous_stride,
    NUM_KEPT: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    request = tl.program_id(0) * BLOCK_REQUESTS + tl.arange(0, BLOCK_REQUESTS)
    block = tl.program_id(1)
    column = block * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
    is_request = request < num_requests
    is_column = column < vocab_size
    is_logit = is_request[:, None] & is_column[None, :]
    row = request.to(tl.int64) * base_stride + position * vocab_size
    base = tl.load(base_ptr + row[:, None] + column[None, :], mask=is_logit, other=float("-inf"))
    previous = tl.load(previous_ptr + request * previous_stride, mask=is_request, other=0)
    bias = tl.zeros([BLOCK_REQUESTS, BLOCK_VOCAB], tl.float32)
    for start in tl.static_range(0, RANK, BLOCK_RANK):
        dim = start + tl.arange(0, BLOCK_RANK)
        is_dim = (dim < RANK)[None, :]
        code = tl.load(
            code_ptr + (previous * RANK)[:, None] + dim[None, :],
            mask=is_request[:, None] & is_dim,
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + (column * RANK)[:, None] + dim[None, :],
            mask=is_column[:, None] & is_dim,
            other=0.0,
        )
        bias = tl.dot(code, tl.trans(weight), bias, input_precision=PRECISION)
    logit = base + bias
    maximum = tl.max(logit, axis=1)
    is_largest = logit == maximum[:, None]
    token = tl.min(tl.where(is_largest, column[None, :], _NO_TOKEN), axis=1)
    at = request * tl.num_programs(1) + block
    tl.store(maximum_ptr + at, maximum, mask=is_request)
    tl.store(token_ptr + at, token, mask=is_request)
    if kept_ptr is not None:
        temperature = tl.load(temperature_ptr + request, mask=is_request, other=0.0)
        slot = tl.load(slot_ptr + request, mask=is_request, other=-1)
        is_drawing = (temperature > 0.0) & (slot >= 0)
        scale = log2_scale(tl.where(is_drawing, temperature, 1.0))
        shift = tl.where(tl.abs(maximum) < float("inf"), maximum, 0.0)
        mass = tl.sum(tl.exp2((logit - shift[:, None]) * scale[:, None]), axis=1)
        tl.store(mass_ptr + at, mass, mask=is_request)
        row = (slot * NUM_KEPT + position) * vocab_size
        kept = kept_ptr + row[:, None] + column[None, :]
        tl.store(kept, logit, mask=is_logit & is_drawing[:, None])


@triton.jit(do_not_specialize=["num_blocks", "position", "out_stride"])
def _token_kernel(
    maximum_ptr,
    mass_ptr,
    token_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
    step_ptr,
    slot_ptr,
    kept_ptr,
    kept_scale_ptr,
    kept_maximum_ptr,
    kept_mass_ptr,
    out_ptr,
    num_blocks,
    vocab_size,
    position,
    out_stride,
    NUM_KEPT: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    request = tl.program_id(0)
    block = tl.arange(0, NUM_BLOCKS)
    at = request * num_blocks + block
    is_block = block < num_blocks
    maxima = tl.load(maximum_ptr + at, mask=is_block, other=float("-inf"))
    maximum = tl.max(maxima, axis=0)
    token = tl.load(token_ptr + at, mask=is_block & (maxima == maximum), other=_NO_TOKEN)
    token = tl.minimum(tl.min(token, axis=0), vocab_size - 1)
    if kept_ptr is not None:
        temperature = tl.load(temperature_ptr + request)
        slot = tl.load(slot_ptr + request)
        if (temperature > 0.0) & (slot >= 0):
            scale = log2_scale(temperature)
            fade = tl.exp2((maxima - maximum) * scale)
            mass = tl.load(mass_ptr + at, mask=is_block & (fade > 0.0), other=0.0)
            mass = (mass * fade).to(tl.float64)
            total = tl.sum(mass, axis=0)
            kept_at = slot * NUM_KEPT + position
            tl.store(kept_scale_ptr + kept_at, scale * _LN_2)
            tl.store(kept_maximum_ptr + kept_at, maximum)
            tl.store(kept_mass_ptr + kept_at, total.to(tl.float32))
            key = tl.load(position_ptr + request) + position
            uniform = keyed_uniform(tl.load(seed_ptr + request), key, DRAFT, tl.load(step_ptr))
            found, left = find_share(mass, block, uniform * total)
            column = tl.maximum(found, 0) * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
            kept = kept_ptr + kept_at * vocab_size + column
            logit = tl.load(kept, mask=column < vocab_size, other=float("-inf"))
            weight = tl.exp2((logit - maximum) * scale).to(tl.float64)
            drawn, _ = find_share(weight, column, left)
            token = tl.where(drawn >= 0, drawn, token)
    tl.store(out_ptr + request.to(tl.int64) * out_stride + position, token.to(tl.int64))
