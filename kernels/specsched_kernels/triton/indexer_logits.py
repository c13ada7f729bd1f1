"""Device code of `indexer_logits`: tiles of a row's context, FP8 products where there are some."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["indexer_logits"]

_BLOCK_TOKENS = 64
_PROGRAMS_PER_PROCESSOR = 16


def indexer_logits(
    query: torch.Tensor,
    weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.indexer_logits`."""
    num_rows, num_heads, head_dim = query.shape
    block_size = key_cache.shape[1]
    num_tiles = triton.cdiv(out.shape[1], _BLOCK_TOKENS)
    if num_rows == 0 or num_tiles == 0:
        return
    flat = key_cache.view(-1)
    num_shares = min(triton.cdiv(_num_programs(query), num_rows), num_tiles)
    _logits_kernel[(num_rows, num_shares)](
        query,
        weights,
        flat.view(torch.float8_e4m3fn),
        flat.view(torch.float32),
        block_tables,
        request_ids,
        context_lens,
        out,
        min(out.shape[1], block_tables.shape[1] * block_size),
        num_shares,
        block_tables.stride(0),
        out.stride(0),
        NUM_HEADS=num_heads,
        BLOCK_HEADS=max(triton.next_power_of_2(num_heads), 16),
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_TOKENS=_BLOCK_TOKENS,
        HAS_FP8=_has_fp8_products(query),
        num_warps=4,
        num_stages=3,
    )


def _num_programs(query: torch.Tensor) -> int:
    """Programs that fill the device a few times over, to even out contexts of any length."""
    if not query.is_cuda:
        return 2
    properties = torch.cuda.get_device_properties(query.device)
    return properties.multi_processor_count * _PROGRAMS_PER_PROCESSOR


def _has_fp8_products(query: torch.Tensor) -> bool:
    return query.is_cuda and torch.cuda.get_device_capability(query.device) >= (8, 9)


@triton.jit(do_not_specialize=["max_tokens", "num_shares"])
def _logits_kernel(
    query_ptr,
    weight_ptr,
    value_ptr,
    scale_ptr,
    block_table_ptr,
    request_ptr,
    context_len_ptr,
    out_ptr,
    max_tokens,
    num_shares,
    block_table_stride,
    out_stride,
    NUM_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HAS_FP8: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request = tl.load(request_ptr + row).to(tl.int64)
    num_tokens = tl.minimum(tl.load(context_len_ptr + row), max_tokens)
    if request >= 0:
        head = tl.arange(0, BLOCK_HEADS)
        dim = tl.arange(0, HEAD_DIM)
        is_head = head < NUM_HEADS
        query_at = (row * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
        query = tl.load(query_ptr + query_at, mask=is_head[:, None], other=0.0)
        weight = tl.load(weight_ptr + row * NUM_HEADS + head, mask=is_head, other=0.0)
        table_ptr = block_table_ptr + request * block_table_stride
        first = tl.program_id(1) * BLOCK_TOKENS
        for start in range(first, num_tokens, num_shares * BLOCK_TOKENS):
            token = start + tl.arange(0, BLOCK_TOKENS)
            is_token = token < num_tokens
            block = tl.load(table_ptr + token // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)
            place = token % BLOCK_SIZE
            key_at = block * (BLOCK_SIZE * (HEAD_DIM + 4)) + place * HEAD_DIM
            key = tl.load(
                value_ptr + key_at[:, None] + dim[None, :], mask=is_token[:, None], other=0.0
            )
            # A block in floats: HEAD_DIM / 4 of values, then 1 of scale, for each of its tokens.
            scale_at = block * (BLOCK_SIZE * (HEAD_DIM // 4 + 1)) + BLOCK_SIZE * (HEAD_DIM // 4)
            scale = tl.load(scale_ptr + scale_at + place, mask=is_token, other=0.0)
            if HAS_FP8:
                score = tl.dot(key, tl.trans(query))
            else:
                score = tl.dot(key.to(tl.float16), tl.trans(query.to(tl.float16)))
            logit = tl.sum(tl.maximum(score, 0.0) * weight[None, :], axis=1) * scale
            tl.store(out_ptr + row * out_stride + token, logit, mask=is_token)
