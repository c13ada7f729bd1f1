"""Device code of `store_latent`: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["store_latent"]


def store_latent(
    compressed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
) -> None:
    """See `specsched_kernels.latent_rows.store_latent`."""
    num_rows, width = compressed.shape
    if num_rows == 0:
        return
    rank = norm_weight.shape[0]
    _store_latent_kernel[(num_rows,)](
        compressed,
        norm_weight,
        slot_mapping,
        latent_cache,
        eps,
        compressed.stride(0),
        RANK=rank,
        BLOCK_RANK=triton.next_power_of_2(rank),
        REST=width - rank,
        BLOCK_REST=triton.next_power_of_2(max(width - rank, 1)),
        num_warps=4 if rank >= 512 else 1,
    )


@triton.jit
def _store_latent_kernel(
    compressed_ptr,
    norm_weight_ptr,
    slot_ptr,
    cache_ptr,
    eps,
    compressed_stride,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot >= 0:
        dtype = compressed_ptr.dtype.element_ty
        source = compressed_ptr + row * compressed_stride
        target = cache_ptr + slot * (RANK + REST)
        dim = tl.arange(0, BLOCK_RANK)
        mask = dim < RANK
        latent = tl.load(source + dim, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(norm_weight_ptr + dim, mask=mask, other=0.0)
        scale = tl.rsqrt(tl.sum(latent * latent, axis=0) / RANK + eps)
        # Rounded to the dtype of the input first, as the norm by itself does.
        normed = (latent * scale * weight).to(dtype)
        tl.store(target + dim, normed.to(cache_ptr.dtype.element_ty), mask=mask)
        rest = tl.arange(0, BLOCK_REST)
        is_rest = rest < REST
        rotary = tl.load(source + RANK + rest, mask=is_rest, other=0.0)
        tl.store(target + RANK + rest, rotary.to(cache_ptr.dtype.element_ty), mask=is_rest)
