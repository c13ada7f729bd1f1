"""Device code of `sparse_mla`: rows and groups of heads; chosen tokens split where rows are few.

An entry of the cache is read once for both products: whole as a key, its first part as a value.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from specsched_kernels.triton.sparse_mla_plan import SparsePlan

__all__ = ["sparse_mla"]

_LOG2_E = 1.0 / math.log(2.0)


def sparse_mla(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    topk: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.sparse_mla`."""
    num_rows, num_heads, width = query.shape
    value_dim = out.shape[2]
    if num_rows == 0:
        return
    plan = SparsePlan.of(query, topk.shape[1])
    partial_shape = (num_rows, num_heads, plan.num_splits) if plan.num_splits > 1 else (1, 1, 1)
    partial = torch.empty((*partial_shape, value_dim), dtype=torch.float32, device=query.device)
    log_sums = torch.empty(partial_shape, dtype=torch.float32, device=query.device)
    _attend_kernel[(triton.cdiv(num_heads, plan.block_heads), num_rows, plan.num_splits)](
        query,
        latent_cache,
        topk,
        block_tables,
        request_ids,
        out,
        partial,
        log_sums,
        scale * _LOG2_E,
        topk.shape[1],
        block_tables.stride(0),
        NUM_HEADS=num_heads,
        WIDTH=width,
        VALUE_DIM=value_dim,
        BLOCK_VALUE=max(triton.next_power_of_2(value_dim), 16),
        BLOCK_REST=max(triton.next_power_of_2(width - value_dim), 16),
        BLOCK_SIZE=latent_cache.shape[1],
        BLOCK_HEADS=plan.block_heads,
        BLOCK_TOKENS=plan.block_tokens,
        CHUNK_TOKENS=plan.chunk_tokens,
        NUM_SPLITS=plan.num_splits,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )
    if plan.num_splits > 1:
        _combine_splits_kernel[(num_rows * num_heads,)](
            partial,
            log_sums,
            out,
            VALUE_DIM=value_dim,
            BLOCK_VALUE=triton.next_power_of_2(value_dim),
            NUM_SPLITS=plan.num_splits,
            BLOCK_SPLITS=triton.next_power_of_2(plan.num_splits),
        )


@triton.jit(do_not_specialize=["num_chosen"])
def _attend_kernel(
    query_ptr,
    cache_ptr,
    chosen_ptr,
    block_table_ptr,
    request_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    scale_log2,
    num_chosen,
    block_table_stride,
    NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    CHUNK_TOKENS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(0) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = (head < NUM_HEADS)[:, None]
    dim = tl.arange(0, BLOCK_VALUE)
    rest = VALUE_DIM + tl.arange(0, BLOCK_REST)
    is_dim, is_rest = (dim < VALUE_DIM)[None, :], (rest < WIDTH)[None, :]
    query_at = query_ptr + ((row * NUM_HEADS + head) * WIDTH)[:, None]
    query = tl.load(query_at + dim[None, :], mask=is_head & is_dim, other=0.0)
    query_rest = tl.load(query_at + rest[None, :], mask=is_head & is_rest, other=0.0)
    request = tl.load(request_ptr + row).to(tl.int64)
    table_ptr = block_table_ptr + request * block_table_stride
    chosen_ptr += row * num_chosen
    first = split * CHUNK_TOKENS
    # The last token that the chunk chose: what follows it is padding and costs nothing.
    lane = first + tl.arange(0, CHUNK_TOKENS)
    num_listed = tl.where(request >= 0, num_chosen, 0)
    listed = tl.load(chosen_ptr + lane, mask=lane < num_listed, other=-1)
    end = tl.max(tl.where(listed >= 0, lane + 1, 0), axis=0)

    best = tl.full([BLOCK_HEADS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_HEADS], tl.float32)
    total = tl.zeros([BLOCK_HEADS, BLOCK_VALUE], tl.float32)
    for start in range(first, end, BLOCK_TOKENS):
        place = start + tl.arange(0, BLOCK_TOKENS)
        token = tl.load(chosen_ptr + place, mask=place < end, other=-1)
        is_token = token >= 0
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
        entry = cache_ptr + ((block * BLOCK_SIZE + token % BLOCK_SIZE) * WIDTH)[:, None]
        latent = tl.load(entry + dim[None, :], mask=is_token[:, None] & is_dim, other=0.0)
        key_rest = tl.load(entry + rest[None, :], mask=is_token[:, None] & is_rest, other=0.0)
        score = tl.dot(query, tl.trans(latent), input_precision=PRECISION)
        score = tl.dot(query_rest, tl.trans(key_rest), score, input_precision=PRECISION)
        score = tl.where(is_token[None, :], score * scale_log2, float("-inf"))
        new_best = tl.maximum(best, tl.max(score, axis=1))
        # A tile that chose nothing leaves -inf as the maximum: shift by 0 then.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(best - shift)
        weight_sum = weight_sum * fade + tl.sum(weight, axis=1)
        total = total * fade[:, None]
        total = tl.dot(weight.to(latent.dtype), latent, total, input_precision=PRECISION)
        best = new_best
    at = row * NUM_HEADS + head
    divisor = tl.where(weight_sum > 0, weight_sum, 1.0)
    total = total / divisor[:, None]
    if NUM_SPLITS == 1:
        out = out_ptr + (at * VALUE_DIM)[:, None] + dim[None, :]
        tl.store(out, total.to(out_ptr.dtype.element_ty), mask=is_head & is_dim)
    else:
        at = at * NUM_SPLITS + split
        part = partial_ptr + (at * VALUE_DIM)[:, None] + dim[None, :]
        tl.store(part, total, mask=is_head & is_dim)
        tl.store(log_sum_ptr + at, best + tl.log2(divisor), mask=head < NUM_HEADS)


@triton.jit
def _combine_splits_kernel(
    partial_ptr,
    log_sum_ptr,
    out_ptr,
    VALUE_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Weigh the parts of a row and head by the share of the softmax's sum that they hold."""
    at = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_SPLITS)
    is_split = split < NUM_SPLITS
    log_sum = tl.load(log_sum_ptr + at * NUM_SPLITS + split, mask=is_split, other=float("-inf"))
    best = tl.max(log_sum, axis=0)
    weight = tl.exp2(log_sum - tl.where(best == float("-inf"), 0.0, best))
    weight_sum = tl.sum(weight, axis=0)
    dim = tl.arange(0, BLOCK_VALUE)
    mask = is_split[:, None] & (dim < VALUE_DIM)[None, :]
    part_at = (at * NUM_SPLITS + split)[:, None] * VALUE_DIM + dim[None, :]
    part = tl.load(partial_ptr + part_at, mask=mask, other=0.0)
    total = tl.sum(part * weight[:, None], axis=0) / tl.where(weight_sum > 0, weight_sum, 1.0)
    out = out_ptr + at * VALUE_DIM + dim
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=dim < VALUE_DIM)
