"""Device code of `logit_rules`: few programs, each going from one ruled row to the next.

A row is changed at the tokens that its rules name, never read as a whole. What one rule changed the
next one reads, possibly in another thread: hence the barriers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.logit_rules import RuledRequests
from specsched_kernels.rule_tables import LogitRuleTables

__all__ = ["apply_logit_rules", "count_tokens"]

_MAX_PROGRAMS = 528
_BLOCK_SEEN = 512
_BLOCK_FEW = 128
_NUM_WARPS = 8


def apply_logit_rules(
    logits: torch.Tensor,
    tables: LogitRuleTables,
    ruled: RuledRequests,
    logit_start_loc: torch.Tensor,
    output_positions: torch.Tensor,
    draft_token_ids: torch.Tensor,
) -> None:
    """See `specsched_kernels.logit_rules.apply_logit_rules`."""
    num_drafts = draft_token_ids.shape[1]
    num_rows = min(logits.shape[0], ruled.slot_ids.shape[0] * (num_drafts + 1))
    if num_rows == 0:
        return
    _rules_kernel[(min(num_rows, _MAX_PROGRAMS),)](
        logits,
        ruled.count,
        ruled.indexes,
        ruled.slot_ids,
        logit_start_loc,
        output_positions,
        draft_token_ids,
        tables.factors,
        tables.seen,
        tables.num_seen,
        tables.bias_token_ids,
        tables.biases,
        tables.num_biases,
        tables.stop_token_ids,
        tables.num_stops,
        tables.min_positions,
        logits.shape[1],
        tables.sizes.row_width,
        NUM_DRAFTS=num_drafts,
        BLOCK_DRAFTS=triton.next_power_of_2(num_drafts),
        BLOCK_SEEN=_BLOCK_SEEN,
        BLOCK_FEW=_BLOCK_FEW,
        num_warps=_NUM_WARPS,
    )


def count_tokens(
    tables: LogitRuleTables,
    ruled: RuledRequests,
    token_ids: torch.Tensor,
    num_accepted: torch.Tensor,
) -> None:
    """See `specsched_kernels.logit_rules.count_tokens`."""
    num_requests, num_tokens = token_ids.shape
    if num_requests == 0:
        return
    _count_kernel[(min(num_requests, _MAX_PROGRAMS),)](
        ruled.count,
        ruled.indexes,
        ruled.slot_ids,
        token_ids,
        num_accepted,
        tables.seen,
        tables.num_seen,
        tables.sizes.row_width,
        tables.sizes.max_seen,
        NUM_TOKENS=num_tokens,
        BLOCK_TOKENS=triton.next_power_of_2(num_tokens),
        BLOCK_SEEN=_BLOCK_SEEN,
        num_warps=_NUM_WARPS,
    )


@triton.jit
def _rules_kernel(
    logit_ptr,
    num_ruled_ptr,
    ruled_ptr,
    slot_ptr,
    start_loc_ptr,
    position_ptr,
    draft_ptr,
    factor_ptr,
    seen_ptr,
    num_seen_ptr,
    bias_token_ptr,
    bias_ptr,
    num_biases_ptr,
    stop_ptr,
    num_stops_ptr,
    min_position_ptr,
    vocab_size,
    row_width,
    NUM_DRAFTS: tl.constexpr,
    BLOCK_DRAFTS: tl.constexpr,
    BLOCK_SEEN: tl.constexpr,
    BLOCK_FEW: tl.constexpr,
):
    num_items = tl.load(num_ruled_ptr) * (NUM_DRAFTS + 1)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        request = tl.load(ruled_ptr + item // (NUM_DRAFTS + 1))
        offset = item % (NUM_DRAFTS + 1)
        row = tl.load(start_loc_ptr + request) + offset
        if row < tl.load(start_loc_ptr + request + 1):
            slot = tl.load(slot_ptr + request)
            row_ptr = logit_ptr + tl.cast(row, tl.int64) * vocab_size
            at = slot * row_width
            num_biases = tl.load(num_biases_ptr + at)
            _add(row_ptr, bias_token_ptr + at, bias_ptr + at, num_biases, BLOCK_FEW)
            num_seen = tl.load(num_seen_ptr + at)
            if num_seen > 0:
                tl.debug_barrier()
                _penalize(
                    row_ptr, factor_ptr + at, seen_ptr + at, num_seen,
                    draft_ptr + slot * NUM_DRAFTS, offset, BLOCK_SEEN, BLOCK_DRAFTS,
                )  # fmt: skip
            position = tl.load(position_ptr + request) + offset
            if position < tl.load(min_position_ptr + at):
                tl.debug_barrier()
                _forbid(row_ptr, stop_ptr + at, tl.load(num_stops_ptr + at), BLOCK_FEW)


@triton.jit
def _add(row_ptr, token_ptr, bias_ptr, num_biases, BLOCK: tl.constexpr):
    for start in range(0, num_biases, BLOCK):
        index = start + tl.arange(0, BLOCK)
        mask = index < num_biases
        at = row_ptr + tl.load(token_ptr + index, mask=mask, other=0)
        bias = tl.load(bias_ptr + index, mask=mask, other=0.0)
        tl.store(at, tl.load(at, mask=mask, other=0.0) + bias, mask=mask)


@triton.jit
def _forbid(row_ptr, token_ptr, num_stops, BLOCK: tl.constexpr):
    for start in range(0, num_stops, BLOCK):
        index = start + tl.arange(0, BLOCK)
        mask = index < num_stops
        at = row_ptr + tl.load(token_ptr + index, mask=mask, other=0)
        tl.store(at, tl.full([BLOCK], float("-inf"), tl.float32), mask=mask)


@triton.jit
def _penalize(
    row_ptr,
    factor_ptr,
    seen_ptr,
    num_seen,
    draft_ptr,
    num_before,
    BLOCK_SEEN: tl.constexpr,
    BLOCK_DRAFTS: tl.constexpr,
):
    """Penalties on the seen tokens, then on those drafts before the row that are none of them."""
    draft_index = tl.arange(0, BLOCK_DRAFTS)
    is_before = draft_index < num_before
    draft = tl.load(draft_ptr + draft_index, mask=is_before, other=-1).to(tl.int32)
    is_seen = tl.zeros([BLOCK_SEEN, BLOCK_DRAFTS], tl.int32)
    for start in range(0, num_seen, BLOCK_SEEN):
        index = start + tl.arange(0, BLOCK_SEEN)
        mask = index < num_seen
        token = tl.load(seen_ptr + 2 * index, mask=mask, other=-2)
        is_draft = (token[:, None] == draft[None, :]).to(tl.int32)
        is_seen |= is_draft
        count = tl.load(seen_ptr + 2 * index + 1, mask=mask, other=0)
        _penalize_tokens(row_ptr, factor_ptr, token, count + tl.sum(is_draft, axis=1), mask)
    is_same = (draft[:, None] == draft[None, :]).to(tl.int32)
    num_earlier = tl.sum(tl.where(draft_index[None, :] < draft_index[:, None], is_same, 0), axis=1)
    is_new = is_before & (num_earlier == 0) & (tl.max(is_seen, axis=0) == 0)
    _penalize_tokens(row_ptr, factor_ptr, draft, tl.sum(is_same, axis=1), is_new)


@triton.jit
def _penalize_tokens(row_ptr, factor_ptr, token, count, mask):
    """count: of each token in the output; those that `mask` leaves out stay as they are."""
    repetition = tl.load(factor_ptr)
    frequency = tl.load(factor_ptr + 1)
    presence = tl.load(factor_ptr + 2)
    value = tl.load(row_ptr + token, mask=mask, other=0.0)
    value = tl.where(value > 0, value / repetition, value * repetition)
    value -= frequency * count.to(tl.float32)
    value -= tl.where(count > 0, presence, 0.0)
    tl.store(row_ptr + token, value, mask=mask)


@triton.jit
def _count_kernel(
    num_ruled_ptr,
    ruled_ptr,
    slot_ptr,
    token_ptr,
    accepted_ptr,
    seen_ptr,
    num_seen_ptr,
    row_width,
    max_seen,
    NUM_TOKENS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_SEEN: tl.constexpr,
):
    for item in range(tl.program_id(0), tl.load(num_ruled_ptr), tl.num_programs(0)):
        request = tl.load(ruled_ptr + item)
        of_slot = tl.load(slot_ptr + request) * row_width
        num_seen = tl.load(num_seen_ptr + of_slot)
        if num_seen > 0:
            order = tl.arange(0, BLOCK_TOKENS)
            is_token = order <= tl.load(accepted_ptr + request)
            at = token_ptr + request * NUM_TOKENS + order
            token = tl.load(at, mask=is_token, other=-1).to(tl.int32)
            is_same = (token[:, None] == token[None, :]).to(tl.int32)
            is_earlier = order[None, :] < order[:, None]
            num_earlier = tl.sum(tl.where(is_earlier, is_same, 0), axis=1)
            is_first = is_token & (num_earlier == 0)
            times = tl.sum(is_same, axis=1)
            seen = seen_ptr + of_slot
            place = _places_of(token, seen, num_seen, BLOCK_TOKENS, BLOCK_SEEN)
            is_old = is_first & (place >= 0)
            count = tl.load(seen + 2 * place + 1, mask=is_old, other=0)
            tl.store(seen + 2 * place + 1, count + times, mask=is_old)
            is_new = (is_first & (place < 0)).to(tl.int32)
            place = num_seen + tl.cumsum(is_new, axis=0) - is_new
            has_room = (is_new != 0) & (place < max_seen)
            tl.store(seen + 2 * place, token, mask=has_room)
            tl.store(seen + 2 * place + 1, times, mask=has_room)
            tl.debug_barrier()
            total = tl.minimum(num_seen + tl.sum(is_new, axis=0), max_seen)
            tl.store(num_seen_ptr + of_slot, total)


@triton.jit
def _places_of(token, seen_ptr, num_seen, BLOCK_TOKENS: tl.constexpr, BLOCK_SEEN: tl.constexpr):
    """Where each token stands among the seen ones; -1: nowhere."""
    places = tl.full([BLOCK_SEEN, BLOCK_TOKENS], -1, tl.int32)
    for start in range(0, num_seen, BLOCK_SEEN):
        index = start + tl.arange(0, BLOCK_SEEN)
        seen = tl.load(seen_ptr + 2 * index, mask=index < num_seen, other=-2)
        places = tl.where(seen[:, None] == token[None, :], index[:, None], places)
    return tl.max(places, axis=0)
