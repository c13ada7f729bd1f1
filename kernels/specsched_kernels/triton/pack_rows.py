"""Device code of `pack_rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsched_kernels.reference.pack_rows import RowSources

if TYPE_CHECKING:
    from specsched_kernels.allocate_verify_lens import VerifyAllocation
    from specsched_kernels.pack_rows import PackedRows

__all__ = ["pack_rows"]

_BLOCK_ROWS = 256


def pack_rows(
    allocation: VerifyAllocation, sources: RowSources, block_size: int, out: PackedRows
) -> None:
    """Fill `out` in one launch, see `specsched_kernels.pack_rows`."""
    padded_rows = out.token_ids.shape[0]
    if padded_rows == 0:
        return
    _pack_kernel[(triton.cdiv(padded_rows, _BLOCK_ROWS),)](
        allocation.row_to_request,
        allocation.row_positions,
        allocation.query_start_loc,
        sources.anchor_token_ids,
        sources.draft_token_ids,
        sources.block_tables,
        sources.slot_ids,
        sources.num_base_rows,
        sources.prompt_token_ids,
        sources.prompt_start,
        out.token_ids,
        out.slot_mapping,
        padded_rows,
        sources.block_tables.stride(0),
        MAX_DRAFT_TOKENS=sources.draft_token_ids.shape[1],
        BLOCK_SIZE=block_size,
        BLOCK_ROWS=_BLOCK_ROWS,
    )


@triton.jit(do_not_specialize=["padded_rows"])
def _pack_kernel(
    request_ptr,
    position_ptr,
    query_loc_ptr,
    anchor_ptr,
    draft_ptr,
    block_table_ptr,
    slot_ptr,
    base_ptr,
    prompt_ptr,
    prompt_start_ptr,
    token_ptr,
    slot_mapping_ptr,
    padded_rows,
    block_table_stride,
    MAX_DRAFT_TOKENS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    in_buffer = row < padded_rows
    request = tl.load(request_ptr + row, mask=in_buffer, other=-1).to(tl.int64)
    is_row = request >= 0
    offset = row - tl.load(query_loc_ptr + request, mask=is_row, other=0)
    slot = request
    if slot_ptr is not None:
        slot = tl.load(slot_ptr + request, mask=is_row, other=0).to(tl.int64)
    base = tl.full([BLOCK_ROWS], 1, tl.int32)
    if base_ptr is not None:
        base = tl.load(base_ptr + request, mask=is_row, other=1)
    is_base = offset < base
    is_anchor = is_row & is_base
    token = tl.zeros([BLOCK_ROWS], tl.int64)
    if prompt_start_ptr is not None:
        start = tl.load(prompt_start_ptr + request, mask=is_row, other=-1)
        is_prompt = is_anchor & (start >= 0)
        is_anchor = is_anchor & (start < 0)
        token = tl.load(prompt_ptr + start + offset, mask=is_prompt, other=0)
    token += tl.load(anchor_ptr + slot, mask=is_anchor, other=0)
    draft = slot * MAX_DRAFT_TOKENS + offset - base
    token += tl.load(draft_ptr + draft, mask=is_row & (is_base == 0), other=0)
    tl.store(token_ptr + row, token, mask=in_buffer)
    position = tl.load(position_ptr + row, mask=is_row, other=0)
    block_ptr = block_table_ptr + request * block_table_stride + position // BLOCK_SIZE
    block = tl.load(block_ptr, mask=is_row, other=0).to(tl.int64)
    kv_slot = tl.where(is_row, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
    tl.store(slot_mapping_ptr + row, kv_slot, mask=in_buffer)
