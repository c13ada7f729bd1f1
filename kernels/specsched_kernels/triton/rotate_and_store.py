"""Device code of `rotate_and_store`: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specsched_kernels.reference.rotate_and_store import HeadNorms

__all__ = ["rotate_and_store"]


def rotate_and_store(
    heads: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """See `specsched_kernels.rotate_and_store`."""
    num_rows, num_all_heads, head_dim = heads.shape
    if num_rows == 0:
        return
    num_kv_heads = (num_all_heads - num_heads) // 2
    _rotate_and_store_kernel[(num_rows,)](
        heads,
        positions,
        slot_mapping,
        cos_sin,
        key_cache,
        value_cache,
        None if norms is None else norms.query,
        None if norms is None else norms.key,
        0.0 if norms is None else norms.eps,
        heads.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_HEADS=triton.next_power_of_2(max(num_heads, 1)),
        BLOCK_KV_HEADS=triton.next_power_of_2(num_kv_heads),
        BLOCK_SIZE=key_cache.shape[1],
        HALF=head_dim // 2,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
    )


@triton.jit(do_not_specialize=["eps"])
def _rotate_and_store_kernel(
    heads_ptr,
    position_ptr,
    slot_ptr,
    cos_sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    query_norm_ptr,
    key_norm_ptr,
    eps,
    row_stride,
    block_stride,
    token_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, BLOCK_HALF)
    is_dim = dim < HALF
    angle_ptr = cos_sin_ptr + tl.load(position_ptr + row) * (2 * HALF) + dim
    cos = tl.load(angle_ptr, mask=is_dim, other=0.0)[None, :]
    sin = tl.load(angle_ptr + HALF, mask=is_dim, other=0.0)[None, :]
    row_ptr = heads_ptr + row * row_stride

    head = tl.arange(0, BLOCK_HEADS)
    mask = (head < NUM_HEADS)[:, None] & is_dim[None, :]
    pair_ptr = row_ptr + (head * (2 * HALF))[:, None] + dim[None, :]
    first, second = _rotated(pair_ptr, mask, query_norm_ptr, eps, cos, sin, HALF)
    tl.store(pair_ptr, first, mask=mask)
    tl.store(pair_ptr + HALF, second, mask=mask)

    slot = tl.load(slot_ptr + row)
    if slot >= 0:
        kv_head = tl.arange(0, BLOCK_KV_HEADS)
        is_kv = (kv_head < NUM_KV_HEADS)[:, None] & is_dim[None, :]
        pair = (kv_head * (2 * HALF))[:, None] + dim[None, :]
        start = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride
        key_ptr = row_ptr + NUM_HEADS * (2 * HALF) + pair
        value_ptr = key_ptr + NUM_KV_HEADS * (2 * HALF)
        low, high = _rotated(key_ptr, is_kv, key_norm_ptr, eps, cos, sin, HALF)
        _store_pair(key_cache_ptr + start + pair, low, high, is_kv, HALF)
        low = tl.load(value_ptr, mask=is_kv, other=0.0)
        high = tl.load(value_ptr + HALF, mask=is_kv, other=0.0)
        _store_pair(value_cache_ptr + start + pair, low, high, is_kv, HALF)


@triton.jit
def _rotated(pair_ptr, mask, norm_ptr, eps, cos, sin, HALF: tl.constexpr):
    """Both halves of heads, normed where there is a norm, rotated and rounded to their dtype."""
    dtype = pair_ptr.dtype.element_ty
    first = tl.load(pair_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pair_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    if norm_ptr is not None:
        mean = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)[:, None]
        dim = tl.arange(0, cos.shape[1])
        weight = tl.load(norm_ptr + dim, mask=dim < HALF, other=0.0).to(tl.float32)
        first *= scale * weight[None, :]
        weight = tl.load(norm_ptr + HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)
        second *= scale * weight[None, :]
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@triton.jit
def _store_pair(cache_ptr, first, second, mask, HALF: tl.constexpr):
    dtype = cache_ptr.dtype.element_ty
    tl.store(cache_ptr, first.to(dtype), mask=mask)
    tl.store(cache_ptr + HALF, second.to(dtype), mask=mask)
