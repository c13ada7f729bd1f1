"""Between the projection of a layer and its attention: rotary embedding and cache write."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_cuda_layout, check_tensor
from specsched_kernels.reference import rotate_and_store as reference

__all__ = ["rotate_and_store"]


def rotate_and_store(  # noqa: PLR0917 -- the order all of these kernels have
    heads: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """Rotate queries and keys in place, then write keys and values into their cache slots.

    heads: any float [n, H + 2 Hkv, D], queries, keys and values of each row. positions,
    slot_mapping: int64 [n]; a negative slot (padding) writes nothing. cos_sin: float32
    [max_positions, D], see `rope`. key_cache, value_cache: [num_blocks, block_size, Hkv, D]; on
    CUDA of equal strides, the last two dimensions dense. Raises ValueError for another shape.
    """
    num_rows, device = heads.shape[0], heads.device
    check_tensor("heads", heads, tuple(heads.shape), heads.dtype, key_cache.device)
    check_tensor("positions", positions, (num_rows,), torch.int64, device)
    check_tensor("slot_mapping", slot_mapping, (num_rows,), torch.int64, device)
    arguments = (heads, num_heads, positions, slot_mapping, cos_sin, key_cache, value_cache)
    if heads.is_cuda:
        from specsched_kernels.triton.rotate_and_store import rotate_and_store as launch

        check_cuda_layout(key_cache, value_cache)
        launch(*arguments)
    else:
        reference.rotate_and_store(*arguments)
