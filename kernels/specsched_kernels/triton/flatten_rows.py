"""Device code of `flatten_rows`: a few rows a program, which finds their requests by itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.flatten_rows import QueryRows

__all__ = ["flatten_rows"]

_BLOCK_ROWS = 8
_BLOCK_ENTRIES = 128


def flatten_rows(
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    block_size: int,
    out: QueryRows,
) -> None:
    """Fill `out` in one launch, see `specsched_kernels.flatten_rows`."""
    num_requests, max_blocks = block_tables.shape
    num_rows = out.context_lens.shape[0]
    if num_rows == 0:
        return
    _flatten_kernel[(triton.cdiv(num_rows, _BLOCK_ROWS),)](
        query_start_loc,
        context_lens,
        block_tables,
        out.request_ids,
        out.context_lens,
        out.block_tables,
        num_requests,
        num_rows,
        max_blocks,
        BLOCK_SIZE=block_size,
        BLOCK_REQUESTS=max(triton.next_power_of_2(num_requests), 16),
        BLOCK_ROWS=_BLOCK_ROWS,
        BLOCK_ENTRIES=_BLOCK_ENTRIES,
    )


@triton.jit(do_not_specialize=["num_requests", "num_rows", "max_blocks"])
def _flatten_kernel(
    query_loc_ptr,
    context_len_ptr,
    table_ptr,
    out_request_ptr,
    out_context_ptr,
    out_table_ptr,
    num_requests,
    num_rows,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_ENTRIES: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    in_buffer = row < num_rows
    every = tl.arange(0, BLOCK_REQUESTS)
    ends = tl.load(query_loc_ptr + 1 + every, mask=every < num_requests, other=0x7FFFFFFF)
    request = tl.sum((ends[None, :] <= row[:, None]).to(tl.int32), axis=1)
    is_row = in_buffer & (request < num_requests)
    end = tl.load(query_loc_ptr + 1 + request, mask=is_row, other=0).to(tl.int32)
    context = tl.load(context_len_ptr + request, mask=is_row, other=0).to(tl.int32)
    context = tl.minimum(tl.maximum(context - (end - row) + 1, 0), max_blocks * BLOCK_SIZE)
    context = tl.where(is_row, context, 0)
    tl.store(out_request_ptr + row, tl.where(is_row, request, -1), mask=in_buffer)
    tl.store(out_context_ptr + row, context, mask=in_buffer)
    if out_table_ptr is not None:
        num_used = tl.cdiv(context, BLOCK_SIZE)
        source = table_ptr + request.to(tl.int64) * max_blocks
        target = out_table_ptr + row.to(tl.int64) * max_blocks
        for start in range(0, tl.max(num_used, axis=0), BLOCK_ENTRIES):
            entry = start + tl.arange(0, BLOCK_ENTRIES)
            mask = entry[None, :] < num_used[:, None]
            block = tl.load(source[:, None] + entry[None, :], mask=mask, other=0)
            tl.store(target[:, None] + entry[None, :], block, mask=mask)
