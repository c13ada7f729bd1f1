"""Places of context and blocks in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels.reference.slot_tables import SlotTables

__all__ = ["CommittedRows", "PlacedBlocks", "WindowPages", "place_blocks", "place_context"]

_PAD_SLOT = -1


@dataclass(frozen=True, slots=True)
class WindowPages:
    """Pages of page_tokens tokens for a window of context and a block of block_size rows each; rows
    after a block's first are tokens mask_token_id."""

    window: int
    block_size: int
    mask_token_id: int
    page_tokens: int = 16

    @property
    def pages_per_slot(self) -> int:
        """Pages that a slot owns, one after the other."""
        return -(-(self.window + self.block_size) // self.page_tokens)

    @property
    def tokens_per_slot(self) -> int:
        """Places of one slot."""
        return self.pages_per_slot * self.page_tokens


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """The n rows that a step of R requests ran, after verification.

    row_to_request: int32 [n], -1 in padding. row_positions: int64 [n]. query_start_loc: int32
    [R+1]. num_base_rows, num_accepted: int32 [R], so many rows of each request belong to committed
    tokens. slot_ids, start_positions: int64 [R].
    """

    row_to_request: torch.Tensor
    row_positions: torch.Tensor
    query_start_loc: torch.Tensor
    num_base_rows: torch.Tensor
    num_accepted: torch.Tensor
    slot_ids: torch.Tensor
    start_positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class PlacedBlocks:
    """R blocks of k rows each: token_ids, positions, slot_mapping int64 [R * k]; context_lens int64
    [R], with the block; block_tables int32 [R, pages]. anchor_ids, num_tokens: int64 [R], of the
    slot. live_slot_ids: int64 [R], -1 where nothing is drafted."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    anchor_ids: torch.Tensor
    num_tokens: torch.Tensor
    live_slot_ids: torch.Tensor

    @classmethod
    def empty(
        cls, num_requests: int, pages: WindowPages, device: torch.device | str = "cpu"
    ) -> PlacedBlocks:
        """Uninitialised outputs."""

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        num_rows = num_requests * pages.block_size
        return cls(
            token_ids=empty(num_rows),
            positions=empty(num_rows),
            slot_mapping=empty(num_rows),
            context_lens=empty(num_requests),
            block_tables=empty(num_requests, pages.pages_per_slot, dtype=torch.int32),
            anchor_ids=empty(num_requests),
            num_tokens=empty(num_requests),
            live_slot_ids=empty(num_requests),
        )


def place_context(pages: WindowPages, rows: CommittedRows, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.window_pages.place_context`."""
    request = rows.row_to_request.clamp(min=0).long()
    offset = torch.arange(len(request)) - rows.query_start_loc[request]
    num_committed = (rows.num_base_rows + rows.num_accepted)[request]
    first_kept = rows.start_positions[request] + num_committed - pages.window
    kept = (rows.row_to_request >= 0) & (offset < num_committed)
    kept &= rows.row_positions >= first_kept
    places = rows.slot_ids[request] * pages.tokens_per_slot + rows.row_positions % pages.window
    out.copy_(torch.where(kept, places, _PAD_SLOT))


def place_blocks(
    pages: WindowPages,
    tables: SlotTables,
    slot_ids: torch.Tensor,
    draft_lens: torch.Tensor,
    out: PlacedBlocks,
) -> None:
    """Fill `out`, see `specsched_kernels.window_pages.place_blocks`."""
    is_live = (slot_ids >= 0) & (draft_lens > 0)
    slots = slot_ids.clamp(min=0)
    row = torch.arange(pages.block_size)
    out.anchor_ids.copy_(tables.anchor_token_ids[slots])
    out.num_tokens.copy_(tables.num_tokens[slots])
    out.live_slot_ids.copy_(torch.where(is_live, slots, _PAD_SLOT))
    num_seen = (out.num_tokens - 1).clamp(min=0)
    context = num_seen.clamp(max=pages.window)
    out.context_lens.copy_(context + pages.block_size)
    out.positions.copy_((num_seen[:, None] + row).flatten())
    places = (slots * pages.tokens_per_slot + context)[:, None] + row
    out.slot_mapping.copy_(torch.where(is_live[:, None], places, _PAD_SLOT).flatten())
    out.token_ids.fill_(pages.mask_token_id)
    out.token_ids[:: pages.block_size] = out.anchor_ids
    first_page = slots[:, None] * pages.pages_per_slot
    out.block_tables.copy_(first_page + torch.arange(pages.pages_per_slot))
