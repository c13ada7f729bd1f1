"""Packing of token ids and KV slots in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specsched_kernels.allocate_verify_lens import VerifyAllocation
    from specsched_kernels.pack_rows import PackedRows

__all__ = ["RowSources", "pack_rows"]

PAD_SLOT = -1


@dataclass(frozen=True, slots=True)
class RowSources:
    """Where the tokens of a step come from, for R requests.

    anchor_token_ids: int64 [R]; draft_token_ids: int64 [R, k]; either by request or, with
    `slot_ids` int32 or int64 [R], tables by slot. block_tables: int32 [R, max_blocks].
    num_base_rows: int32 [R], 1 by default. prompt_token_ids: int64 [p], prompt tokens of this
    step's prefill chunks, with prompt_start int32 [R], where those of a request begin; -1 for a
    decoding request, whose base row is its anchor.
    """

    anchor_token_ids: torch.Tensor
    draft_token_ids: torch.Tensor
    block_tables: torch.Tensor
    slot_ids: torch.Tensor | None = None
    num_base_rows: torch.Tensor | None = None
    prompt_token_ids: torch.Tensor | None = None
    prompt_start: torch.Tensor | None = None


def pack_rows(
    allocation: VerifyAllocation, sources: RowSources, block_size: int, out: PackedRows
) -> None:
    """Fill `out`, see `specsched_kernels.pack_rows`."""
    out.token_ids.zero_()
    out.slot_mapping.fill_(PAD_SLOT)
    num_rows = int(allocation.query_start_loc[-1])
    request = allocation.row_to_request[:num_rows].long()
    position = allocation.row_positions[:num_rows]
    rows = torch.arange(num_rows, device=request.device)
    offset = rows - allocation.query_start_loc[request]
    out.token_ids[:num_rows] = _token_ids(sources, request, offset)
    block = sources.block_tables[request, position // block_size].long()
    out.slot_mapping[:num_rows] = block * block_size + position % block_size


def _token_ids(sources: RowSources, request: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    slot = request if sources.slot_ids is None else sources.slot_ids[request].long()
    base = 1 if sources.num_base_rows is None else sources.num_base_rows[request]
    last = sources.draft_token_ids.shape[1] - 1
    draft = sources.draft_token_ids[slot, (offset - base).clamp(0, last)]
    token = torch.where(offset < base, sources.anchor_token_ids[slot], draft)
    if sources.prompt_start is None or sources.prompt_token_ids is None:
        return token
    start = sources.prompt_start[request]
    is_prompt = (start >= 0) & (offset < base)
    index = torch.where(is_prompt, start + offset, 0)
    return torch.where(is_prompt, sources.prompt_token_ids[index], token)
