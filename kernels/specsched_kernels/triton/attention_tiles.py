"""Which rows and heads a program of `paged_attention` works on."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["find_tile", "lanes", "last_seen"]


@triton.jit
def lanes(kv_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Query head and row within the tile of each lane: the heads of a row side by side."""
    lane = tl.arange(0, BLOCK_M)
    return kv_head * GROUP + lane % GROUP, lane // GROUP


@triton.jit
def last_seen(row, end_row, context_len, IS_CAUSAL: tl.constexpr):
    """Last position that a row attends to: its own, or its request's last."""
    end = end_row
    if IS_CAUSAL:
        end = row + 1
    return context_len - 1 - (end_row - end)


@triton.jit
def find_tile(
    query_loc_ptr,
    context_len_ptr,
    tile,
    num_requests,
    BLOCK_Q: tl.constexpr,
    LOG_REQUESTS: tl.constexpr,
):
    """Request of a tile, the tile's first row, the end of the request's rows, its context length.

    Request r begins at tile query_start_loc[r] // BLOCK_Q + r, which leaves room for the last,
    partly filled tile of each; a tile that falls into such room has no rows.
    """
    request = tile
    local = 0
    if LOG_REQUESTS > 0:
        low = 0
        high = num_requests
        for _ in tl.static_range(LOG_REQUESTS):
            middle = (low + high) // 2
            is_past = tl.load(query_loc_ptr + middle) // BLOCK_Q + middle <= tile
            low = tl.where(is_past, middle, low)
            high = tl.where(is_past, high, middle)
        request = low
        local = tile - (tl.load(query_loc_ptr + request).to(tl.int32) // BLOCK_Q + request)
    first_row = tl.load(query_loc_ptr + request).to(tl.int32) + local * BLOCK_Q
    end_row = tl.load(query_loc_ptr + request + 1).to(tl.int32)
    context_len = tl.load(context_len_ptr + request).to(tl.int32)
    return request, first_row, end_row, context_len
