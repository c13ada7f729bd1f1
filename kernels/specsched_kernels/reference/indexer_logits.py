"""Scores of the lightning indexer in plain torch, one row at a time."""

from __future__ import annotations

import torch

__all__ = ["cached_keys", "indexer_logits"]


def indexer_logits(  # noqa: PLR0917 -- the order all of these kernels have
    query: torch.Tensor,
    weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.indexer_logits`."""
    room = min(out.shape[1], block_tables.shape[1] * key_cache.shape[1])
    for row, (request, length) in enumerate(
        zip(request_ids.tolist(), context_lens.tolist(), strict=True)
    ):
        num_tokens = min(length, room)
        if request < 0 or num_tokens <= 0:
            continue
        num_blocks = -(-num_tokens // key_cache.shape[1])
        keys = cached_keys(key_cache, block_tables[request, :num_blocks].long())[:num_tokens]
        scores = (query[row].float() @ keys.T).relu()
        out[row, :num_tokens] = weights[row] @ scores


def cached_keys(key_cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """float32 [len(blocks) * block_size, head_dim]: the keys of some blocks, scaled."""
    block_size, head_dim = key_cache.shape[1], key_cache.shape[2] - 4
    content = key_cache[blocks].flatten(1)
    values = content[:, : block_size * head_dim].contiguous().view(torch.float8_e4m3fn)
    scales = content[:, block_size * head_dim :].contiguous().view(torch.float32)
    return values.float().view(-1, head_dim) * scales.view(-1, 1)
