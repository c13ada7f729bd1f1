"""Device code of `slot_tables`: a lane per request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.calibration import LOGIT_EPSILON
from specsched_kernels.reference.slot_tables import DraftRanking, SlotCommit, SlotTables

__all__ = ["commit_slots", "read_slots", "store_drafts"]

_BLOCK = 128
_EPSILON = tl.constexpr(LOGIT_EPSILON)


def read_slots(
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    given_positions: torch.Tensor,
    draft_limits: torch.Tensor,
    start_positions: torch.Tensor,
    num_draft_tokens: torch.Tensor,
) -> None:
    """Fill the last two, see `specsched_kernels.slot_tables.read_slots`."""
    num_requests = slot_ids.shape[0]
    if num_requests == 0:
        return
    _read_kernel[(triton.cdiv(num_requests, _BLOCK),)](
        tables.num_tokens,
        tables.num_draft_tokens,
        tables.generations,
        slot_ids,
        generations,
        given_positions,
        draft_limits,
        start_positions,
        num_draft_tokens,
        num_requests,
        BLOCK=_BLOCK,
    )


def commit_slots(tables: SlotTables, commit: SlotCommit) -> None:
    """See `specsched_kernels.slot_tables.commit_slots`."""
    num_requests = commit.slot_ids.shape[0]
    if num_requests == 0:
        return
    _commit_kernel[(triton.cdiv(num_requests, _BLOCK),)](
        tables.anchor_token_ids,
        tables.num_tokens,
        tables.num_draft_tokens,
        commit.slot_ids,
        commit.samples,
        commit.start_positions,
        commit.num_base_rows,
        commit.token_ids,
        commit.num_accepted,
        num_requests,
        NUM_TOKENS=commit.token_ids.shape[1],
        BLOCK=_BLOCK,
    )


def store_drafts(
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    draft_lens: torch.Tensor,
    token_ids: torch.Tensor,
    confidence: torch.Tensor,
    ranking: DraftRanking | None = None,
) -> None:
    """See `specsched_kernels.slot_tables.store_drafts`."""
    num_requests, num_tokens = token_ids.shape
    if num_requests == 0:
        return
    _store_kernel[(triton.cdiv(num_requests, _BLOCK),)](
        tables.draft_token_ids,
        tables.confidence,
        tables.num_draft_tokens,
        tables.generations,
        slot_ids,
        generations,
        draft_lens,
        token_ids,
        confidence,
        *((None,) * 4 if ranking is None else _tensors_of(ranking)),
        num_requests,
        NUM_TOKENS=num_tokens,
        TABLE_TOKENS=tables.draft_token_ids.shape[1],
        BLOCK=_BLOCK,
    )


def _tensors_of(ranking: DraftRanking) -> tuple[torch.Tensor, ...]:
    temperatures = (ranking.temperature, ranking.intercept)
    return *temperatures, ranking.sampling_temperature, ranking.ranked


@triton.jit(do_not_specialize=["num_requests"])
def _read_kernel(
    num_tokens_ptr,
    num_draft_ptr,
    table_generation_ptr,
    slot_ptr,
    generation_ptr,
    given_ptr,
    limit_ptr,
    start_ptr,
    present_ptr,
    num_requests,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = request < num_requests
    slot = tl.load(slot_ptr + request, mask=mask, other=-1)
    is_live = slot >= 0
    given = tl.load(given_ptr + request, mask=mask, other=0)
    anchor = tl.load(num_tokens_ptr + slot, mask=is_live, other=1) - 1
    start = tl.where(is_live, tl.where(given >= 0, given, anchor), 0)
    wanted = tl.load(generation_ptr + request, mask=mask, other=0)
    held = tl.load(table_generation_ptr + slot, mask=is_live, other=-1)
    limit = tl.load(limit_ptr + request, mask=mask, other=0)
    present = tl.minimum(tl.load(num_draft_ptr + slot, mask=is_live, other=0), limit)
    present = tl.where(is_live & (held == wanted), present, 0)
    tl.store(start_ptr + request, start, mask=mask)
    tl.store(present_ptr + request, present, mask=mask)


@triton.jit(do_not_specialize=["num_requests"])
def _commit_kernel(
    anchor_ptr,
    num_tokens_ptr,
    num_draft_ptr,
    slot_ptr,
    samples_ptr,
    start_ptr,
    base_ptr,
    token_ptr,
    accepted_ptr,
    num_requests,
    NUM_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = request < num_requests
    slot = tl.load(slot_ptr + request, mask=mask, other=-1)
    commits = (slot >= 0) & (tl.load(samples_ptr + request, mask=mask, other=0) != 0)
    accepted = tl.load(accepted_ptr + request, mask=commits, other=0)
    token = tl.load(token_ptr + request * NUM_TOKENS + accepted, mask=commits, other=0)
    first = tl.load(start_ptr + request, mask=commits, other=0)
    first += tl.load(base_ptr + request, mask=commits, other=0)
    tl.store(anchor_ptr + slot, token, mask=commits)
    tl.store(num_tokens_ptr + slot, first + accepted + 1, mask=commits)
    tl.store(num_draft_ptr + slot, tl.zeros_like(accepted), mask=commits)


@triton.jit(do_not_specialize=["num_requests"])
def _store_kernel(
    table_token_ptr,
    table_confidence_ptr,
    num_draft_ptr,
    table_generation_ptr,
    slot_ptr,
    generation_ptr,
    length_ptr,
    token_ptr,
    confidence_ptr,
    temperature_ptr,
    intercept_ptr,
    sampling_ptr,
    ranked_ptr,
    num_requests,
    NUM_TOKENS: tl.constexpr,
    TABLE_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = request < num_requests
    slot = tl.load(slot_ptr + request, mask=mask, other=-1)
    is_live = slot >= 0
    of_class = tl.zeros([BLOCK], tl.int32)
    if sampling_ptr is not None:
        is_sampled = tl.load(sampling_ptr + request, mask=is_live, other=0.0) > 0.0
        of_class = is_sampled.to(tl.int32) * TABLE_TOKENS
    for position in tl.static_range(NUM_TOKENS):
        at = request * NUM_TOKENS + position
        to = slot * TABLE_TOKENS + position
        tl.store(table_token_ptr + to, tl.load(token_ptr + at, mask=is_live), mask=is_live)
        value = tl.load(confidence_ptr + at, mask=is_live)
        if ranked_ptr is not None:
            temperature = tl.load(temperature_ptr + of_class + position)
            intercept = tl.load(intercept_ptr + of_class + position)
            value = _calibrated(value, temperature, intercept)
            tl.store(ranked_ptr + request * TABLE_TOKENS + position, value, mask=is_live)
        tl.store(table_confidence_ptr + to, value, mask=is_live)
    length = tl.load(length_ptr + request, mask=is_live, other=0)
    length = tl.minimum(tl.maximum(length, 0), NUM_TOKENS)
    tl.store(num_draft_ptr + slot, length, mask=is_live)
    generation = tl.load(generation_ptr + request, mask=is_live, other=0)
    tl.store(table_generation_ptr + slot, generation, mask=is_live)


@triton.jit
def _calibrated(confidence, temperature, intercept):
    """See `specsched_kernels.reference.calibration`."""
    changes = (confidence > 0.0) & (confidence < 1.0) & (temperature > 0.0)
    inside = tl.minimum(tl.maximum(confidence, _EPSILON), 1.0 - _EPSILON)
    logit = tl.log(inside / (1.0 - inside))
    scaled = logit / tl.where(temperature > 0.0, temperature, 1.0) + intercept
    return tl.where(changes, tl.sigmoid(scaled), confidence)
