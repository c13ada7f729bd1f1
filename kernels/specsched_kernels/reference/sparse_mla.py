"""Latent attention over chosen tokens in plain torch, one row at a time."""

from __future__ import annotations

import torch

__all__ = ["sparse_mla"]


def sparse_mla(  # noqa: PLR0917 -- the order all of these kernels have
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    topk: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.sparse_mla`. Works in the dtype of query."""
    block_size, value_dim = latent_cache.shape[1], out.shape[2]
    for row, request in enumerate(request_ids.tolist()):
        chosen = topk[row][topk[row] >= 0].long()
        if request < 0 or len(chosen) == 0:
            out[row] = 0.0
            continue
        blocks = block_tables[request, chosen // block_size].long()
        entries = latent_cache[blocks, chosen % block_size]
        weights = ((query[row] @ entries.T) * scale).softmax(dim=-1)
        out[row] = weights @ entries[:, :value_dim]
