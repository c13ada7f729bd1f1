"""Write keys and values into a paged cache in plain torch."""

from __future__ import annotations

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """See specsched_kernels.write_kv."""
    block_size = key_cache.shape[1]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, offsets] = key[kept].to(key_cache.dtype)
    value_cache[blocks, offsets] = value[kept].to(value_cache.dtype)
