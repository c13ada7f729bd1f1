"""How `sparse_mla` cuts a batch into groups of heads and chunks of chosen tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

__all__ = ["SparsePlan"]

_BLOCK_HEADS = 64
_MIN_CHUNK_TOKENS = 128
_MAX_SPLITS = 16


@dataclass(frozen=True, slots=True)
class SparsePlan:
    """Sizes of a launch; decided by shapes alone, the same for every replay of a graph."""

    block_heads: int
    block_tokens: int
    chunk_tokens: int
    num_splits: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, query: torch.Tensor, num_chosen: int) -> SparsePlan:
        """The plan for a query [n, H, D] and the number of tokens that a row may choose."""
        num_rows, num_heads, _ = query.shape
        block_heads = max(min(triton.next_power_of_2(num_heads), _BLOCK_HEADS), 16)
        num_programs = num_rows * triton.cdiv(num_heads, block_heads)
        chunk_tokens = _chunk_tokens(num_programs, num_chosen, query)
        # Tiles of 64 tokens twice over, and the queries, just fit a processor of compute
        # capability 9.0; the third stage is that of the indices.
        is_half = query.element_size() == 2
        is_full = block_heads == _BLOCK_HEADS
        return cls(
            block_heads=block_heads,
            block_tokens=64 if is_full and is_half else 32,
            chunk_tokens=chunk_tokens,
            num_splits=max(triton.cdiv(num_chosen, chunk_tokens), 1),
            num_warps=8 if is_full else 4,
            num_stages=3 if is_half else 1,
        )


def _chunk_tokens(num_programs: int, num_chosen: int, query: torch.Tensor) -> int:
    """A power of two; shorter than all chosen tokens where the programs don't fill the device."""
    num_processors = 1
    if query.is_cuda:
        num_processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    num_splits = min(max(num_processors // num_programs, 1), _MAX_SPLITS)
    chunk = triton.next_power_of_2(triton.cdiv(num_chosen, num_splits))
    return int(max(chunk, _MIN_CHUNK_TOKENS))
