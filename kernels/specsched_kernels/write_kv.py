"""Writing a step's keys and values into the paged cache."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_cuda_layout
from specsched_kernels.cpu import rows as kernel
from specsched_kernels.cpu.layout import is_cpu_float, stored_keys, stored_values
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
    key_cache, value_cache: [num_blocks, block_size, Hkv, D], any strides; on CUDA both the
    same, the last two dimensions dense.
    """
    if key.is_cuda:
        from specsched_kernels.triton.write_kv import write_kv as launch

        check_cuda_layout(key_cache, value_cache)
        launch(key, value, key_cache, value_cache, slot_mapping)
        return
    keys, values = stored_keys(key_cache), stored_values(value_cache)
    if keys is None or values is None or not is_cpu_float(key, value, keys, values):
        reference.write_kv(key, value, slot_mapping, key_cache, value_cache)
        return
    kernel.write_kv(
        key.numpy(),
        0,
        value.numpy(),
        0,
        slot_mapping.numpy(),
        keys.numpy(),
        values.numpy(),
        0,
        len(key),
    )
