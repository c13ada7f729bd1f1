"""Scores of the lightning indexer: how much each query row wants each token of its context."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import indexer_logits as reference

__all__ = ["INDEX_DIM", "KEY_BLOCK_SIZE", "KEY_BYTES", "indexer_logits"]

INDEX_DIM = 128
"""Dimensions of a head of the indexer."""

KEY_BLOCK_SIZE = 64
"""Tokens of a block of the key cache."""

KEY_BYTES = INDEX_DIM + 4
"""Bytes of a token in the key cache: e4m3 values and a float32 scale."""


def indexer_logits(  # noqa: PLR0917 -- the order all of these kernels have
    query: torch.Tensor,
    weights: torch.Tensor,
    key_cache: torch.Tensor,
    block_tables: torch.Tensor,
    request_ids: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    max_context_tokens: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[i, t] = sum over heads of weights[i, h] * relu(query[i, h] . key[t]), as DeepSeek-V3.2.

    query: float8_e4m3fn [n, H, 128]. weights: float32 [n, H], the scales of the queries multiplied
    in. key_cache: uint8 [num_blocks, 64, 132], in a block the e4m3 values of its 64 tokens, then
    their float32 scales, as DeepGEMM's paged kernels read it. block_tables: int32 [R, max_blocks].
    request_ids: int32 [n], -1 for a row of padding. context_lens: int32 [n], tokens that a row
    scores, at most max_context_tokens and what its block table holds.

    Returns `out`, float32 [n, max_context_tokens]; what lies at or past a row's context length is
    not written. On a CPU a row's result does not depend on the other rows. On CUDA the shapes and
    max_context_tokens alone size the launch. Raises ValueError for another shape or dtype.
    """
    num_rows, num_heads = query.shape[:2]
    device = query.device
    if out is None:
        out = torch.empty((num_rows, max_context_tokens), dtype=torch.float32, device=device)
    check_tensor("query", query, (num_rows, num_heads, INDEX_DIM), torch.float8_e4m3fn, device)
    check_tensor("weights", weights, (num_rows, num_heads), torch.float32, device)
    cache_shape = (key_cache.shape[0], KEY_BLOCK_SIZE, KEY_BYTES)
    check_tensor("key_cache", key_cache, cache_shape, torch.uint8, device)
    check_tensor("block_tables", block_tables, tuple(block_tables.shape), torch.int32, device)
    check_tensor("request_ids", request_ids, (num_rows,), torch.int32, device)
    check_tensor("context_lens", context_lens, (num_rows,), torch.int32, device)
    check_tensor("out", out, (num_rows, max_context_tokens), torch.float32, device)
    arguments = (query, weights, key_cache, block_tables, request_ids, context_lens, out)
    if query.is_cuda:
        from specsched_kernels.triton.indexer_logits import indexer_logits as launch

        launch(*arguments)
    else:
        reference.indexer_logits(*arguments)
    return out
