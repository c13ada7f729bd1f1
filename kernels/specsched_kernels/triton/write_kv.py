"""Device code of `write_kv`: scatter new keys and values into their slots of the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["write_kv"]


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """cache[slot // block_size, slot % block_size] = row, nothing for a negative slot.

    keys, values: [n, num_kv_heads, head_dim] with equal strides, the last two dimensions dense.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim] with equal strides, the
    last two dimensions dense. slot_mapping: int64 [n].
    """
    num_rows, num_heads, head_dim = keys.shape
    if num_rows == 0:
        return
    _write_kv_kernel[(num_rows,)](
        keys,
        values,
        key_cache,
        value_cache,
        slot_mapping,
        keys.stride(0),
        values.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        BLOCK_SIZE=key_cache.shape[1],
        ROW=num_heads * head_dim,
        BLOCK_ROW=triton.next_power_of_2(num_heads * head_dim),
        num_warps=4 if num_heads * head_dim >= 512 else 1,
    )


@triton.jit
def _write_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_ptr,
    key_stride,
    value_stride,
    block_stride,
    token_stride,
    BLOCK_SIZE: tl.constexpr,
    ROW: tl.constexpr,
    BLOCK_ROW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot >= 0:
        column = tl.arange(0, BLOCK_ROW)
        mask = column < ROW
        key = tl.load(key_ptr + row * key_stride + column, mask=mask)
        value = tl.load(value_ptr + row * value_stride + column, mask=mask)
        start = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride
        tl.store(key_cache_ptr + start + column, key, mask=mask)
        tl.store(value_cache_ptr + start + column, value, mask=mask)
