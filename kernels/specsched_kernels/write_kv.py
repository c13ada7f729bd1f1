"""Writing a step's keys and values into the paged cache."""

from __future__ import annotations

import torch

from specsched_kernels.reference import write_kv as reference

__all__ = ["write_kv"]


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """key_cache[slot // block_size, slot % block_size] = key[row], values likewise, in place.

    key, value: [n, Hkv, D]. slot_mapping: int64 [n]; a negative slot (padding) writes nothing.
    key_cache, value_cache: [num_blocks, block_size, Hkv, D], any strides.
    """
    reference.write_kv(key, value, slot_mapping, key_cache, value_cache)
