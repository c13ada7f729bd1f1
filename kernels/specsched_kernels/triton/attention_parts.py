"""Puts together what the chunks of a context contribute to `paged_attention`."""

from __future__ import annotations

import triton
import triton.language as tl

from specsched_kernels.triton.attention_tiles import find_tile, lanes, last_seen

__all__ = ["combine_kernel"]


@triton.jit(do_not_specialize=["num_requests", "num_rows", "chunk_tokens"])
def combine_kernel(
    partial_ptr,
    log_sum_ptr,
    out_ptr,
    query_loc_ptr,
    context_len_ptr,
    num_requests,
    num_rows,
    chunk_tokens,
    out_stride,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    LOG_REQUESTS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    """Weigh the parts of each row and head by the share of the softmax's sum that they hold."""
    head, lane_row = lanes(tl.program_id(0), GROUP, BLOCK_M)
    _, first_row, end_row, context_len = find_tile(
        query_loc_ptr, context_len_ptr, tl.program_id(1), num_requests, BLOCK_Q, LOG_REQUESTS
    )
    if (first_row < end_row) & (context_len > chunk_tokens):
        row = (first_row + lane_row).to(tl.int64)
        is_row = (lane_row < BLOCK_Q) & (row < end_row)
        position = last_seen(row.to(tl.int32), end_row, context_len, IS_CAUSAL)
        position = tl.where(is_row, position, -1)
        is_row = position >= chunk_tokens
        dim = tl.arange(0, HEAD_DIM)
        best = tl.full([BLOCK_M], float("-inf"), tl.float32)
        weight_sum = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        for split in range((context_len - 1) // chunk_tokens + 1):
            is_part = is_row & (position >= split * chunk_tokens)
            at = (tl.full([], split, tl.int64) * num_rows + row) * NUM_HEADS + head
            log_sum = tl.load(log_sum_ptr + at, mask=is_part, other=float("-inf"))
            part = partial_ptr + (at * HEAD_DIM)[:, None] + dim[None, :]
            part = tl.load(part, mask=is_part[:, None], other=0.0)
            new_best = tl.maximum(best, log_sum)
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)
            fade = tl.exp2(best - shift)
            weight = tl.exp2(log_sum - shift)
            total = total * fade[:, None] + part * weight[:, None]
            weight_sum = weight_sum * fade + weight
            best = new_best
        total = total / tl.where(is_row, weight_sum, 1.0)[:, None]
        out = out_ptr + (row * out_stride + head * HEAD_DIM)[:, None] + dim[None, :]
        tl.store(out, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
