"""Attention over a paged cache in plain torch, one request at a time."""

from __future__ import annotations

import torch


def paged_attention(  # noqa: PLR0917 -- the order all of these kernels have
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    out: torch.Tensor,
    is_causal: bool = True,
) -> torch.Tensor:
    """See specsched_kernels.paged_attention. Works in the dtype of `query`, float64 included."""
    out.zero_()
    starts = query_start_loc.tolist()
    for request, context_len in enumerate(context_lens.tolist()):
        rows = slice(starts[request], starts[request + 1])
        if rows.stop == rows.start or context_len == 0:
            continue
        blocks = block_tables[request].long()
        keys = _gather(key_cache, blocks, context_len, query)
        values = _gather(value_cache, blocks, context_len, query)
        out[rows] = _attend(query[rows], keys, values, scale, is_causal=is_causal).to(out.dtype)
    return out


def _gather(
    cache: torch.Tensor, blocks: torch.Tensor, context_len: int, query: torch.Tensor
) -> torch.Tensor:
    """[context, H, D]: the request's tokens in order, each kv head repeated for its query heads."""
    block_size, num_kv_heads = cache.shape[1], cache.shape[2]
    num_blocks = -(-context_len // block_size)
    tokens = cache[blocks[:num_blocks]].flatten(0, 1)[:context_len].to(query.dtype)
    return tokens.repeat_interleave(query.shape[1] // num_kv_heads, dim=1)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, *, is_causal: bool
) -> torch.Tensor:
    """softmax(q k^T * scale) v, if causal with row i at position context - rows + i."""
    num_rows, context_len = query.shape[0], keys.shape[0]
    scores = torch.einsum("nhd,chd->hnc", query, keys) * scale
    if is_causal:
        last = torch.arange(context_len - num_rows, context_len, device=query.device)
        hidden = torch.arange(context_len, device=query.device)[None, :] > last[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hnc,chd->nhd", scores.softmax(dim=-1), values)
