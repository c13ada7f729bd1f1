"""How `paged_attention` cuts a batch into tiles of rows and chunks of context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from specsched_kernels.triton.search_depth import search_depth

__all__ = ["AttentionPlan"]

_MAX_BLOCK_M = 64
_BLOCK_N = 128
_MIN_CHUNK_TOKENS = 256
_MAX_CHUNK_TOKENS = 4096
_MAX_PARTIAL_BYTES = 128 << 20
_MAX_SPLITS = 32
_MIN_PROGRAMS_PER_PROCESSOR = 4


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Tile and chunk sizes; decided by bounds alone, the same for every replay of a graph."""

    block_m: int
    block_n: int
    block_q: int
    num_tiles: int
    num_programs: int
    log_requests: int
    chunk_tokens: int
    num_splits: int

    @property
    def has_one_tile(self) -> bool:
        """Whether a tile holds all rows of any request, so that tiles are requests."""
        return self.log_requests == 0

    @classmethod
    def of(
        cls,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        num_requests: int,
        max_query_len: int,
        max_context_tokens: int,
    ) -> AttentionPlan:
        """The plan for a query [n, H, D], keys as `paged_attention` takes them, and bounds."""
        num_kv_heads = key_cache.shape[2]
        group = query.shape[1] // num_kv_heads
        wanted = triton.next_power_of_2(max_query_len * group)
        block_m = max(min(wanted, _MAX_BLOCK_M), 16, triton.next_power_of_2(group))
        block_q = block_m // group
        one_tile = max_query_len <= block_q
        num_tiles = num_requests if one_tile else query.shape[0] // block_q + num_requests
        chunk_tokens = _chunk_tokens(num_tiles * num_kv_heads, max_context_tokens, query)
        return cls(
            block_m=block_m,
            block_n=_BLOCK_N,
            block_q=block_q,
            num_tiles=num_tiles,
            num_programs=num_tiles + triton.cdiv(query.shape[0], block_q),
            log_requests=0 if one_tile else search_depth(num_requests),
            chunk_tokens=chunk_tokens,
            num_splits=max(1, triton.cdiv(max_context_tokens, chunk_tokens)),
        )


def _chunk_tokens(num_programs: int, max_context_tokens: int, query: torch.Tensor) -> int:
    """Short enough to fill the device and to even out ragged contexts, as parts have room."""
    num_processors = 1
    if query.is_cuda:
        num_processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    to_fill = triton.cdiv(num_processors * _MIN_PROGRAMS_PER_PROCESSOR, max(num_programs, 1))
    to_even_out = triton.cdiv(max_context_tokens, _MAX_CHUNK_TOKENS)
    room = max(_MAX_PARTIAL_BYTES // max(query.numel() * 4, 1), 1)
    num_splits = max(min(max(to_fill, to_even_out), _MAX_SPLITS, room), 1)
    chunk = max(triton.cdiv(max_context_tokens, num_splits), _MIN_CHUNK_TOKENS)
    return int(triton.cdiv(chunk, _BLOCK_N) * _BLOCK_N)
