"""Entries of the latent cache: what a token leaves for all heads of later queries."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_rows, check_tensor
from specsched_kernels.reference import latent_rows as reference

__all__ = ["store_latent"]


def store_latent(
    compressed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
) -> None:
    """Store the RMS norm of the first L dimensions, and the rotated rest as it is.

    compressed: any float [n, D], rows may be strided. norm_weight: float32 [L]. slot_mapping: int64
    [n]; a negative slot (padding) writes nothing. latent_cache: any float [num_blocks, block_size,
    D]. Raises ValueError for another shape or dtype.
    """
    num_rows, width, device = compressed.shape[0], compressed.shape[1], latent_cache.device
    floats = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    check_rows("compressed", compressed, (num_rows, width), floats, device)
    check_tensor("norm_weight", norm_weight, tuple(norm_weight.shape), torch.float32, device)
    check_tensor("slot_mapping", slot_mapping, (num_rows,), torch.int64, device)
    cache_shape = (*latent_cache.shape[:2], width)
    check_tensor("latent_cache", latent_cache, cache_shape, floats, device)
    arguments = (compressed, norm_weight, eps, slot_mapping, latent_cache)
    if compressed.is_cuda:
        from specsched_kernels.triton.latent_rows import store_latent as launch

        launch(*arguments)
    else:
        reference.store_latent(*arguments)
