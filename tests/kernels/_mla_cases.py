"""Ragged batches over paged caches of indexer keys and latent entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specsched_kernels.indexer_logits import INDEX_DIM, KEY_BLOCK_SIZE, KEY_BYTES


@dataclass(frozen=True)
class Pages:
    """Row i belongs to request_ids[i] and reads context_lens[i] tokens."""

    num_blocks: int
    block_tables: torch.Tensor
    request_ids: torch.Tensor
    context_lens: torch.Tensor

    @property
    def max_context_tokens(self) -> int:
        return int(self.context_lens.max())


def pages(query_lens: list[int], context_lens: list[int], padding: int = 2) -> Pages:
    """Contexts in shuffled blocks; rows are the last `query_len` tokens of each, then padding."""
    num_blocks = [-(-length // KEY_BLOCK_SIZE) for length in context_lens]
    order = torch.randperm(sum(num_blocks) + 2).to(torch.int32)
    # Entries past a context are out of bounds: nothing may follow them.
    tables = torch.full((len(query_lens), max(num_blocks)), 1 << 28, dtype=torch.int32)
    requests, lens, start = [], [], 0
    for request, (rows, length) in enumerate(zip(query_lens, context_lens, strict=True)):
        tables[request, : num_blocks[request]] = order[start : start + num_blocks[request]]
        start += num_blocks[request]
        requests += [request] * rows
        lens += range(length - rows + 1, length + 1)
    return Pages(
        num_blocks=len(order),
        block_tables=tables,
        request_ids=torch.tensor([*requests, *[-1] * padding], dtype=torch.int32),
        context_lens=torch.tensor([*lens, *[0] * padding], dtype=torch.int32),
    )


def key_cache(num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys as the cache holds them, and in float64 [num_blocks, block_size, head_dim]."""
    values = torch.randn(num_blocks, KEY_BLOCK_SIZE, INDEX_DIM).to(torch.float8_e4m3fn)
    scales = torch.rand(num_blocks, KEY_BLOCK_SIZE) + 0.5
    packed = [
        values.view(torch.uint8).flatten(1),
        scales.view(torch.uint8).flatten(1),
    ]
    cache = torch.cat(packed, dim=1).view(num_blocks, KEY_BLOCK_SIZE, KEY_BYTES)
    return cache, values.double() * scales.double()[..., None]


def tokens_of(batch: Pages, row: int, cache: torch.Tensor) -> torch.Tensor:
    """The entries of a row's context in order, from a cache [num_blocks, block_size, width]."""
    length = int(batch.context_lens[row])
    blocks = batch.block_tables[batch.request_ids[row], : -(-length // KEY_BLOCK_SIZE)].long()
    return cache[blocks].flatten(0, 1)[:length]
