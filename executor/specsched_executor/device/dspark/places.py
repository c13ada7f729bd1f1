"""Where context and blocks of each slot lie in the drafter's cache on a device.

Each slot owns as many pages as its longest context and a block need, so that the host has nothing
to hand out. A context token at position p lies at place p mod window, the rows of the block being
drafted behind the context (see drafters.dspark.cache, which lays a host's cache out alike).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from specsched_executor.core import PAD_SLOT
from specsched_executor.device.drafter import ContextRows

__all__ = ["BlockPlaces", "SlotPages"]

_PAGE_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """Of R blocks of k rows each: positions, slot_mapping int64 [R * k]; query_start_loc int64
    [R + 1]; context_lens int64 [R], with the block; block_tables int32 [R, pages]."""

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor


class SlotPages:
    """Pages of `num_slots` slots for a window of context and a block each."""

    def __init__(self, num_slots: int, window: int, block_size: int, device: torch.device) -> None:
        self.window = window
        self.block_size = block_size
        self._pages_per_slot = -(-(window + block_size) // _PAGE_TOKENS)
        self.num_pages = num_slots * self._pages_per_slot
        self.page_tokens = _PAGE_TOKENS
        self._page_offsets = torch.arange(self._pages_per_slot, device=device, dtype=torch.int32)
        self._row_offsets = torch.arange(block_size, device=device)
        self._starts = torch.arange(num_slots + 1, device=device) * block_size

    @property
    def tokens_per_slot(self) -> int:
        """Places of one slot."""
        return self._pages_per_slot * _PAGE_TOKENS

    def context_slots(self, rows: ContextRows) -> torch.Tensor:
        """int64 [n]: cache slot of each row; -1 for padding, rejected drafts, and what lies beyond
        the window once the step is committed."""
        request = rows.row_to_request.clamp(min=0).long()
        offset = torch.arange(len(request), device=request.device) - rows.query_start_loc[request]
        num_committed = (rows.num_base_rows + rows.num_accepted)[request]
        first_kept = rows.start_positions[request] + num_committed - self.window
        kept = (rows.row_to_request >= 0) & (offset < num_committed)
        kept &= rows.row_positions >= first_kept
        places = rows.slot_ids[request] * self.tokens_per_slot + rows.row_positions % self.window
        return torch.where(kept, places, PAD_SLOT)

    def blocks(
        self, slot_ids: torch.Tensor, num_seen: torch.Tensor, is_live: torch.Tensor
    ) -> BlockPlaces:
        """Places of one block per slot, int64 [R]; num_seen: context tokens, int64 [R].

        Blocks that are not live, bool [R], write nothing; they read their slot's own pages.
        """
        k = self.block_size
        context = num_seen.clamp(min=0, max=self.window)
        places = (slot_ids * self.tokens_per_slot + context)[:, None] + self._row_offsets
        slot_mapping = torch.where(is_live[:, None], places, PAD_SLOT)
        tables = slot_ids[:, None].int() * self._pages_per_slot + self._page_offsets
        return BlockPlaces(
            positions=(num_seen.clamp(min=0)[:, None] + self._row_offsets).flatten(),
            slot_mapping=slot_mapping.flatten(),
            query_start_loc=self._starts[: len(slot_ids) + 1],
            context_lens=context + k,
            block_tables=tables,
        )
