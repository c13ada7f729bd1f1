"""Latent attention of query rows over a few chosen tokens of a paged cache."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import sparse_mla as reference

__all__ = ["sparse_mla"]


def sparse_mla(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    topk: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    *,
    scale: float,
    value_dim: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale * query . entry) over a row's chosen entries, times entry[:value_dim].

    query: any float [n, H, D], its heads absorbed into the latent space. latent_cache:
    [num_blocks, block_size, D] in the dtype of query, one entry a token for all heads. topk: int32
    [n, k], positions in the row's sequence, -1 for none (see `select_topk`). block_tables: int32
    [R, max_blocks]. request_ids: int32 [n], -1 for a row of padding.

    Returns `out`, [n, H, value_dim] in the dtype of query; zeros for padding and for a row that
    chose nothing. On a CPU a row's result does not depend on the other rows. On CUDA the shapes
    alone size the launch. Raises ValueError for another shape or dtype.
    """
    num_rows, num_heads, width = query.shape
    device = query.device
    if not 0 < value_dim <= width:
        raise ValueError(f"value_dim is {value_dim}; accepted: 1 to {width}, the width of an entry")
    if out is None:
        out = torch.empty((num_rows, num_heads, value_dim), dtype=query.dtype, device=device)
    check_tensor("query", query, (num_rows, num_heads, width), query.dtype, device)
    cache_shape = (*latent_cache.shape[:2], width)
    check_tensor("latent_cache", latent_cache, cache_shape, query.dtype, device)
    check_tensor("topk", topk, (num_rows, topk.shape[-1]), torch.int32, device)
    check_tensor("block_tables", block_tables, tuple(block_tables.shape), torch.int32, device)
    check_tensor("request_ids", request_ids, (num_rows,), torch.int32, device)
    check_tensor("out", out, (num_rows, num_heads, value_dim), query.dtype, device)
    arguments = (query, latent_cache, topk, block_tables, request_ids, scale, out)
    if query.is_cuda:
        from specsched_kernels.triton.sparse_mla import sparse_mla as launch

        launch(*arguments)
    else:
        reference.sparse_mla(*arguments)
    return out
