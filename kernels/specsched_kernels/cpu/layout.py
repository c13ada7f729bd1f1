"""Which tensors the CPU kernels take; everything else goes to the torch reference."""

from __future__ import annotations

import torch

from specsched_kernels.cpu.paged_attention import SEGMENT
from specsched_kernels.cpu.simd import LANES


def is_cpu_float(*tensors: torch.Tensor) -> bool:
    """Whether all are float32 on the CPU."""
    return all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)


def stored_keys(key_cache: torch.Tensor) -> torch.Tensor | None:
    """[num_blocks, Hkv, D, block_size] as `allocate_kv` stores it; None for another layout."""
    stored = key_cache.permute(0, 2, 3, 1)
    return stored if stored.is_contiguous() else None


def stored_values(value_cache: torch.Tensor) -> torch.Tensor | None:
    """[num_blocks, Hkv, block_size, D] as `allocate_kv` stores it; None for another layout."""
    stored = value_cache.permute(0, 2, 1, 3)
    return stored if stored.is_contiguous() else None


def fills_vectors(block_size: int, head_dim: int) -> bool:
    """Whether blocks and heads are whole vectors, and segments of attention whole blocks."""
    return block_size % LANES == 0 and head_dim % LANES == 0 and SEGMENT % block_size == 0
