"""Queries and keys of the lightning indexer, from its projections to e4m3."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_rows, check_tensor
from specsched_kernels.reference import index_rows as reference

__all__ = ["quantize_index_queries", "store_index_keys"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def store_index_keys(  # noqa: PLR0917 -- the order all of these kernels have
    keys: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    key_cache: torch.Tensor,
) -> None:
    """Layer norm, rotary embedding, Hadamard rotation and quantisation of keys, then their storage.

    keys: any float [n, D], rows may be strided, D a power of two. norm_weight, norm_bias: float32
    [D]. positions, slot_mapping: int64 [n]; a negative slot (padding) writes nothing. cos_sin:
    float32 [max_positions, P], cosines then sines; pairs (i, i + P/2) of the first P dimensions are
    rotated. key_cache: uint8 [num_blocks, block_size, D + 4], see `indexer_logits`. The scale of a
    token is the least power of two, at least 2^-22, with which its values fit, as the published
    model has it. Raises ValueError for another shape or dtype.
    """
    num_rows, width, device = keys.shape[0], keys.shape[1], key_cache.device
    check_rows("keys", keys, (num_rows, width), _FLOATS, device)
    check_tensor("norm_weight", norm_weight, (width,), torch.float32, device)
    check_tensor("norm_bias", norm_bias, (width,), torch.float32, device)
    check_tensor("positions", positions, (num_rows,), torch.int64, device)
    check_tensor("slot_mapping", slot_mapping, (num_rows,), torch.int64, device)
    cache_shape = (*key_cache.shape[:2], width + 4)
    check_tensor("key_cache", key_cache, cache_shape, torch.uint8, device)
    arguments = (keys, norm_weight, norm_bias, eps, positions, slot_mapping, cos_sin, key_cache)
    if keys.is_cuda:
        from specsched_kernels.triton.index_rows import store_index_keys as launch

        launch(*arguments)
    else:
        reference.store_index_keys(*arguments)


def quantize_index_queries(
    queries: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    weight_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding, Hadamard rotation and quantisation of queries, as of keys.

    queries: any float [n, H, D], rows may be strided. head_weights: any float [n, H], rows may be
    strided. positions, cos_sin: see `store_index_keys`. Returns the values, float8_e4m3fn [n, H,
    D], and head_weights times weight_scale and the scale of each query, float32 [n, H], both
    contiguous. Raises ValueError for another shape or dtype.
    """
    num_rows, num_heads, width = queries.shape
    device = queries.device
    check_rows("queries", queries, (num_rows, num_heads, width), _FLOATS, device)
    check_rows("head_weights", head_weights, (num_rows, num_heads), _FLOATS, device)
    check_tensor("positions", positions, (num_rows,), torch.int64, device)
    arguments = (queries, head_weights, positions, cos_sin, weight_scale)
    if not queries.is_cuda:
        return reference.quantize_index_queries(*arguments)
    from specsched_kernels.triton.index_rows import quantize_index_queries as launch

    values = torch.empty(queries.shape, dtype=torch.float8_e4m3fn, device=device)
    scaled_weights = torch.empty((num_rows, num_heads), dtype=torch.float32, device=device)
    launch(*arguments, values, scaled_weights)
    return values, scaled_weights
