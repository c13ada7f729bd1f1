"""Entries of the latent cache in plain torch; a row depends on itself alone."""

from __future__ import annotations

import torch

from specsched_kernels.rms_norm import rms_norm

__all__ = ["store_latent"]


def store_latent(
    compressed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    slot_mapping: torch.Tensor,
    latent_cache: torch.Tensor,
) -> None:
    """See specsched_kernels.latent_rows."""
    rank = len(norm_weight)
    latent, rotary = compressed[:, :rank], compressed[:, rank:]
    normed = rms_norm(latent.contiguous(), norm_weight, eps)
    entries = torch.cat((normed, rotary), dim=1).to(latent_cache.dtype)
    kept = slot_mapping >= 0
    slots, block_size = slot_mapping[kept], latent_cache.shape[1]
    latent_cache[slots // block_size, slots % block_size] = entries[kept]
