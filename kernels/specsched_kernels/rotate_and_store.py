"""Between the projection of a layer and its attention: norms, rotary embedding, cache write."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_cuda_layout, check_tensor
from specsched_kernels.reference import rotate_and_store as reference

__all__ = ["HeadNorms", "rotate_and_store"]

HeadNorms = reference.HeadNorms


def rotate_and_store(  # noqa: PLR0917 -- the order all of these kernels have
    heads: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """Rotate queries and keys, then write keys and values into their cache slots.

    heads: any float [n, H + 2 Hkv, D], queries, keys and values of each row, a row dense; queries
    are replaced in place, keys and values are not to be used any more. positions, slot_mapping:
    int64 [n]; a negative slot (padding) writes nothing. cos_sin: float32 [max_positions, D], see
    `rope`. key_cache, value_cache: [num_blocks, block_size, Hkv, D]; on CUDA of equal strides, the
    last two dimensions dense. With `norms` queries and keys pass an RMS norm per head beforehand.
    Raises ValueError for another shape.
    """
    (num_rows, _, head_dim), device = heads.shape, heads.device
    if heads.stride()[1:] != (head_dim, 1):
        raise ValueError(f"heads has strides {heads.stride()}; accepted: (any, {head_dim}, 1)")
    if norms is not None:
        check_tensor("norms.query", norms.query, (head_dim,), norms.query.dtype, device)
        check_tensor("norms.key", norms.key, (head_dim,), norms.key.dtype, device)
    check_tensor("positions", positions, (num_rows,), torch.int64, device)
    check_tensor("slot_mapping", slot_mapping, (num_rows,), torch.int64, device)
    cache = (key_cache, value_cache)
    arguments = (heads, num_heads, positions, slot_mapping, cos_sin, *cache, norms)
    if heads.is_cuda:
        from specsched_kernels.triton.rotate_and_store import rotate_and_store as launch

        check_cuda_layout(key_cache, value_cache)
        launch(*arguments)
    else:
        reference.rotate_and_store(*arguments)
