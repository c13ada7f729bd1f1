"""Device code of `paged_attention`: ragged rows over paged keys and values, grouped-query heads.

A program takes the rows of one request that fit a tile, all query heads of one KV head, and one
chunk of the context: so each key and value is read once for all rows and heads that need it (the
k + 1 rows of a verified draft share one pass). A context longer than a chunk is spread over
programs that leave partial sums, combined by a second kernel (flash decoding); shorter ones write
the result at once. Chunks have one length for the whole batch, so long contexts of a ragged batch
spread and short ones cost nothing. Whole chunks begin first, then the last of each context, the
longest first where an order is given. All sizes are bounds known on the host, so a graph can
capture it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from specsched_kernels.triton.attention_parts import combine_kernel
from specsched_kernels.triton.attention_plan import AttentionPlan
from specsched_kernels.triton.attention_tiles import find_tile, lanes, last_seen

__all__ = ["paged_attention"]

_NUM_WARPS = 4
_NUM_STAGES = 4
_LOG2_E = 1.0 / math.log(2.0)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    out: torch.Tensor,
    *,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    max_query_len: int,
    max_context_tokens: int,
    is_causal: bool = True,
    order: torch.Tensor | None = None,
) -> None:
    """Fill `out`, see `specsched_kernels.paged_attention`.

    query, out: dense in their last two dimensions. key_cache, value_cache: of equal strides, the
    last 1. max_query_len, max_context_tokens: upper bounds over the batch.
    """
    num_requests = query_start_loc.shape[0] - 1
    plan = AttentionPlan.of(query, key_cache, num_requests, max_query_len, max_context_tokens)
    num_rows, num_heads, head_dim = query.shape
    partial_shape = (plan.num_splits, num_rows, num_heads) if plan.num_splits > 1 else (1, 1, 1)
    partial = torch.empty((*partial_shape, head_dim), dtype=torch.float32, device=query.device)
    log_sums = torch.empty(partial_shape, dtype=torch.float32, device=query.device)
    _attention_kernel[(key_cache.shape[2], plan.num_programs, plan.num_splits)](
        query,
        key_cache,
        value_cache,
        out,
        partial,
        log_sums,
        query_start_loc,
        context_lens,
        block_tables,
        order if plan.has_one_tile else None,
        scale * _LOG2_E,
        num_requests,
        num_rows,
        plan.num_tiles,
        plan.chunk_tokens,
        query.stride(0),
        out.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        NUM_HEADS=num_heads,
        GROUP=num_heads // key_cache.shape[2],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        BLOCK_M=plan.block_m,
        BLOCK_N=plan.block_n,
        BLOCK_Q=plan.block_q,
        LOG_REQUESTS=plan.log_requests,
        IS_SPLIT=plan.num_splits > 1,
        IS_CAUSAL=is_causal,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )
    if plan.num_splits > 1:
        combine_kernel[(key_cache.shape[2], plan.num_tiles)](
            partial,
            log_sums,
            out,
            query_start_loc,
            context_lens,
            num_requests,
            num_rows,
            plan.chunk_tokens,
            out.stride(0),
            NUM_HEADS=num_heads,
            GROUP=num_heads // key_cache.shape[2],
            HEAD_DIM=head_dim,
            BLOCK_M=plan.block_m,
            BLOCK_Q=plan.block_q,
            LOG_REQUESTS=plan.log_requests,
            IS_CAUSAL=is_causal,
        )


@triton.jit(do_not_specialize=["num_requests", "num_rows", "num_tiles", "chunk_tokens"])
def _attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    query_loc_ptr,
    context_len_ptr,
    block_table_ptr,
    order_ptr,
    scale_log2,
    num_requests,
    num_rows,
    num_tiles,
    chunk_tokens,
    query_stride,
    out_stride,
    block_stride,
    token_stride,
    head_stride,
    block_table_stride,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    LOG_REQUESTS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    level = tl.program_id(2)
    head, lane_row = lanes(kv_head, GROUP, BLOCK_M)
    dim = tl.arange(0, HEAD_DIM)
    if tile < num_tiles:
        if order_ptr is not None:
            tile = tl.load(order_ptr + tile)
        request, first_row, end_row, context_len = find_tile(
            query_loc_ptr, context_len_ptr, tile, num_requests, BLOCK_Q, LOG_REQUESTS
        )
        last_row = tl.minimum(first_row + BLOCK_Q, end_row) - 1
        seen_end = last_seen(last_row, end_row, context_len, IS_CAUSAL) + 1
        # Whole chunks first; the last programs to begin are those of the last chunks.
        last_split = tl.maximum(seen_end - 1, 0) // chunk_tokens
        is_last = level == tl.num_programs(2) - 1
        split = tl.where(is_last, last_split, level)
        chunk_start = split * chunk_tokens
        chunk_end = tl.minimum(seen_end, chunk_start + chunk_tokens)
        if (first_row < end_row) & (chunk_start < chunk_end) & (is_last | (level < last_split)):
            row = (first_row + lane_row).to(tl.int64)
            is_row = (lane_row < BLOCK_Q) & (row < end_row)
            position = last_seen(row.to(tl.int32), end_row, context_len, IS_CAUSAL)
            position = tl.where(is_row, position, -1)
            offset = row * query_stride + head * HEAD_DIM
            query = tl.load(
                query_ptr + offset[:, None] + dim[None, :], mask=is_row[:, None], other=0.0
            )
            total, log_sum = _attend(
                query,
                position,
                chunk_start,
                chunk_end,
                key_ptr + kv_head * head_stride,
                value_ptr + kv_head * head_stride,
                block_table_ptr + request.to(tl.int64) * block_table_stride,
                scale_log2,
                block_stride,
                token_stride,
                HEAD_DIM,
                BLOCK_SIZE,
                BLOCK_N,
                PRECISION,
            )
            out = out_ptr + (row * out_stride + head * HEAD_DIM)[:, None] + dim[None, :]
            # Only the first chunk starts low enough for this to hold.
            is_whole = is_row & (chunk_start + position < chunk_tokens)
            tl.store(out, total.to(out_ptr.dtype.element_ty), mask=is_whole[:, None])
            if IS_SPLIT:
                is_part = is_row & (position >= chunk_tokens) & (position >= chunk_start)
                at = (split.to(tl.int64) * num_rows + row) * NUM_HEADS + head
                tl.store(log_sum_ptr + at, log_sum, mask=is_part)
                part = partial_ptr + (at * HEAD_DIM)[:, None] + dim[None, :]
                tl.store(part, total, mask=is_part[:, None])
    elif level == 0:
        row = ((tile - num_tiles) * BLOCK_Q + lane_row).to(tl.int64)
        num_used = tl.load(query_loc_ptr + num_requests)
        is_padding = (lane_row < BLOCK_Q) & (row < num_rows) & (row >= num_used)
        out = out_ptr + (row * out_stride + head * HEAD_DIM)[:, None] + dim[None, :]
        zeros = tl.zeros([BLOCK_M, HEAD_DIM], out_ptr.dtype.element_ty)
        tl.store(out, zeros, mask=is_padding[:, None])


@triton.jit
def _attend(
    query,
    position,
    chunk_start,
    chunk_end,
    key_ptr,
    value_ptr,
    block_table_ptr,
    scale_log2,
    block_stride,
    token_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Softmax-weighted values of the chunk and the base-2 logarithm of the softmax's sum."""
    dim = tl.arange(0, HEAD_DIM)
    best = tl.full([query.shape[0]], float("-inf"), tl.float32)
    weight_sum = tl.zeros([query.shape[0]], tl.float32)
    total = tl.zeros([query.shape[0], HEAD_DIM], tl.float32)
    for start in range(chunk_start, chunk_end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        is_token = token < chunk_end
        block = tl.load(block_table_ptr + token // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
        offset = block * block_stride + (token % BLOCK_SIZE) * token_stride
        tile = offset[:, None] + dim[None, :]
        key = tl.load(key_ptr + tile, mask=is_token[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale_log2
        is_seen = (token[None, :] <= position[:, None]) & is_token[None, :]
        score = tl.where(is_seen, score, float("-inf"))
        new_best = tl.maximum(best, tl.max(score, axis=1))
        # A row that sees nothing of this chunk keeps -inf as its maximum: shift by 0 then.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(best - shift)
        weight_sum = weight_sum * fade + tl.sum(weight, axis=1)
        value = tl.load(value_ptr + tile, mask=is_token[:, None], other=0.0)
        total = total * fade[:, None]
        total = tl.dot(weight.to(value.dtype), value, total, input_precision=PRECISION)
        best = new_best
    divisor = tl.where(weight_sum > 0, weight_sum, 1.0)
    return total / divisor[:, None], best + tl.log2(divisor)
