"""Norms of heads, rotary embedding and cache write in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels.reference.rms_norm import rms_norm
from specsched_kernels.reference.rope import rope
from specsched_kernels.reference.write_kv import write_kv

__all__ = ["HeadNorms", "rotate_and_store"]


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights [D] of the RMS norm of each query head and of each key head."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def rotate_and_store(  # noqa: PLR0917 -- the order all of these kernels have
    heads: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norms: HeadNorms | None,
) -> None:
    """See specsched_kernels.rotate_and_store."""
    num_kv_heads = (heads.shape[1] - num_heads) // 2
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if norms is not None:
        rms_norm(query, norms.query, norms.eps, out=query)
        rms_norm(key, norms.key, norms.eps, out=key)
    rope(query, key, positions, cos_sin)
    stored = (key.to(key_cache.dtype), value.to(value_cache.dtype))
    write_kv(*stored, slot_mapping, key_cache, value_cache)
