"""Device code of `window_pages`: a lane per row, a program per block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.slot_tables import SlotTables
from specsched_kernels.reference.window_pages import CommittedRows, PlacedBlocks, WindowPages

__all__ = ["place_blocks", "place_context"]

_BLOCK = 128


def place_context(pages: WindowPages, rows: CommittedRows, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.window_pages.place_context`."""
    num_rows = rows.row_to_request.shape[0]
    if num_rows == 0:
        return
    _context_kernel[(triton.cdiv(num_rows, _BLOCK),)](
        rows.row_to_request,
        rows.row_positions,
        rows.query_start_loc,
        rows.num_base_rows,
        rows.num_accepted,
        rows.slot_ids,
        rows.start_positions,
        out,
        num_rows,
        WINDOW=pages.window,
        TOKENS_PER_SLOT=pages.tokens_per_slot,
        BLOCK=_BLOCK,
    )


def place_blocks(
    pages: WindowPages,
    tables: SlotTables,
    slot_ids: torch.Tensor,
    draft_lens: torch.Tensor,
    out: PlacedBlocks,
) -> None:
    """Fill `out`, see `specsched_kernels.window_pages.place_blocks`."""
    num_requests = slot_ids.shape[0]
    if num_requests == 0:
        return
    _blocks_kernel[(num_requests,)](
        tables.anchor_token_ids,
        tables.num_tokens,
        slot_ids,
        draft_lens,
        out.token_ids,
        out.positions,
        out.slot_mapping,
        out.context_lens,
        out.block_tables,
        out.anchor_ids,
        out.num_tokens,
        out.live_slot_ids,
        pages.window,
        pages.mask_token_id,
        NUM_PAGES=pages.pages_per_slot,
        NUM_ROWS=pages.block_size,
        PAGE_TOKENS=pages.page_tokens,
        BLOCK_PAGES=triton.next_power_of_2(pages.pages_per_slot),
        BLOCK_ROWS=triton.next_power_of_2(pages.block_size),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _context_kernel(
    row_to_request_ptr,
    position_ptr,
    query_loc_ptr,
    base_ptr,
    accepted_ptr,
    slot_ptr,
    start_ptr,
    out_ptr,
    num_rows,
    WINDOW: tl.constexpr,
    TOKENS_PER_SLOT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    request = tl.load(row_to_request_ptr + row, mask=row < num_rows, other=-1)
    is_row = request >= 0
    offset = row - tl.load(query_loc_ptr + request, mask=is_row, other=0)
    num_committed = tl.load(base_ptr + request, mask=is_row, other=0)
    num_committed += tl.load(accepted_ptr + request, mask=is_row, other=0)
    position = tl.load(position_ptr + row, mask=is_row, other=0)
    start = tl.load(start_ptr + request, mask=is_row, other=0)
    is_kept = is_row & (offset < num_committed) & (position >= start + num_committed - WINDOW)
    slot = tl.load(slot_ptr + request, mask=is_row, other=0)
    place = tl.where(is_kept, slot * TOKENS_PER_SLOT + position % WINDOW, -1)
    tl.store(out_ptr + row, place, mask=row < num_rows)


@triton.jit
def _blocks_kernel(
    anchor_ptr,
    num_tokens_ptr,
    slot_ptr,
    draft_len_ptr,
    out_token_ptr,
    out_position_ptr,
    out_mapping_ptr,
    out_context_len_ptr,
    out_table_ptr,
    out_anchor_ptr,
    out_num_tokens_ptr,
    out_slot_ptr,
    window,
    mask_token_id,
    NUM_PAGES: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    request = tl.program_id(0)
    slot_id = tl.load(slot_ptr + request)
    is_live = (slot_id >= 0) & (tl.load(draft_len_ptr + request) > 0)
    slot = tl.maximum(slot_id, 0)
    anchor = tl.load(anchor_ptr + slot)
    num_tokens = tl.load(num_tokens_ptr + slot)
    num_seen = tl.maximum(num_tokens - 1, 0)
    context = tl.minimum(num_seen, window)
    tl.store(out_anchor_ptr + request, anchor)
    tl.store(out_num_tokens_ptr + request, num_tokens)
    tl.store(out_slot_ptr + request, tl.where(is_live, slot, -1))
    tl.store(out_context_len_ptr + request, context + NUM_ROWS)
    row = tl.arange(0, BLOCK_ROWS)
    at = request * NUM_ROWS + row
    tl.store(out_position_ptr + at, num_seen + row, mask=row < NUM_ROWS)
    token = tl.where(row == 0, anchor, mask_token_id)
    tl.store(out_token_ptr + at, token, mask=row < NUM_ROWS)
    place = slot * (NUM_PAGES * PAGE_TOKENS) + context + row
    tl.store(out_mapping_ptr + at, tl.where(is_live, place, -1), mask=row < NUM_ROWS)
    page = tl.arange(0, BLOCK_PAGES)
    table = (slot * NUM_PAGES + page).to(tl.int32)
    tl.store(out_table_ptr + request * NUM_PAGES + page, table, mask=page < NUM_PAGES)
