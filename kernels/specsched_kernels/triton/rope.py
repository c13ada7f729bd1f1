"""Device code of `rope`: queries and keys of a row in one program, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["rope"]


def rope(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    """Rotate in place, see `specsched_kernels.rope`; heads and head_dim are dense."""
    num_rows, num_heads, head_dim = query.shape
    if num_rows == 0:
        return
    _rope_kernel[(num_rows,)](
        query,
        key,
        positions,
        cos_sin,
        query.stride(0),
        key.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=key.shape[1],
        BLOCK_HEADS=triton.next_power_of_2(num_heads),
        HALF=head_dim // 2,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
    )


@triton.jit
def _rope_kernel(
    query_ptr,
    key_ptr,
    position_ptr,
    cos_sin_ptr,
    query_stride,
    key_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, BLOCK_HALF)
    angle_ptr = cos_sin_ptr + tl.load(position_ptr + row) * (2 * HALF) + dim
    cos = tl.load(angle_ptr, mask=dim < HALF, other=0.0)
    sin = tl.load(angle_ptr + HALF, mask=dim < HALF, other=0.0)
    _rotate(query_ptr + row * query_stride, head, dim, cos, sin, NUM_HEADS, HALF)
    _rotate(key_ptr + row * key_stride, head, dim, cos, sin, NUM_KV_HEADS, HALF)


@triton.jit
def _rotate(row_ptr, head, dim, cos, sin, NUM_HEADS: tl.constexpr, HALF: tl.constexpr):
    pair_ptr = row_ptr + (head * (2 * HALF))[:, None] + dim[None, :]
    mask = (head < NUM_HEADS)[:, None] & (dim < HALF)[None, :]
    first = tl.load(pair_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pair_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = row_ptr.dtype.element_ty
    tl.store(pair_ptr, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(pair_ptr + HALF, (second * cos + first * sin).to(dtype), mask=mask)
