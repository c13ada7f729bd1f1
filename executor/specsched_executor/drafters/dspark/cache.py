"""Context keys and values of the requests that are drafted for, in pages.

A request's context token at position p lies at place p, or p mod window where the drafter sees only
a window: rotary angles are applied before storing and attention does not mind the order. The rows
of the block that is being drafted lie behind the context and are overwritten by what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from specsched_kernels.paged_attention import allocate_kv

from specsched_executor.core import PAD_SLOT
from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.drafters.dspark.pending import NewRows, PendingRows

__all__ = ["DraftCache", "NewRows"]

_PAGE_TOKENS = 16
_MAX_PENDING_ROWS = 256


class DraftCache:
    """Pages of `num_slots` requests, taken as contexts grow and given back at release.

    There are enough for all slots at their longest context, so taking one never fails.

    keys, values: per drafter layer, [pages, page, Hkv, D]. pending: context rows that have their
    places and are still to be written; whoever reads the cache writes them first.
    """

    def __init__(self, config: DSparkConfig, num_slots: int, max_context_tokens: int) -> None:
        self._config = config
        self._window = min(config.window or max_context_tokens, max_context_tokens)
        per_slot = -(-(self._window + config.block_size) // _PAGE_TOKENS)
        # A request's rows of a window at most: so no two of them have the same place.
        self.pending = PendingRows(min(_MAX_PENDING_ROWS, self._window))
        self._free_pages = list(reversed(range(num_slots * per_slot)))
        layers = [
            allocate_kv(num_slots * per_slot, _PAGE_TOKENS, config.num_kv_heads, config.head_dim)
            for _ in range(config.num_layers)
        ]
        self.keys = [keys for keys, _ in layers]
        self.values = [values for _, values in layers]
        self._tables = torch.zeros(num_slots, per_slot, dtype=torch.int32)
        self._pages: list[list[int]] = [[] for _ in range(num_slots)]
        self._generations = torch.zeros(num_slots, dtype=torch.int64)
        self._num_seen = torch.zeros(num_slots, dtype=torch.int64)

    @property
    def num_free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free_pages)

    def claim(self, slot_ids: torch.Tensor, generations: torch.Tensor) -> None:
        """Make sure that these slots, int64 [R], hold nothing of an earlier request."""
        is_stale = self._generations[slot_ids] != generations
        for slot_id in slot_ids[is_stale].tolist():
            self.release(slot_id)
        self._generations[slot_ids] = generations

    def release(self, slot_id: int) -> None:
        """Give back the pages of a slot."""
        self.pending.drop(slot_id)
        self._free_pages += self._pages[slot_id]
        self._pages[slot_id] = []
        self._num_seen[slot_id] = 0
        self._generations[slot_id] = 0

    def append(
        self, slot_ids: torch.Tensor, counts: torch.Tensor, features: Mapping[int, torch.Tensor]
    ) -> None:
        """Find places for the next counts[r] context tokens of each slot, and leave them pending.

        features: target layer -> [sum of counts, hidden], rows request after request.
        """
        first = self._num_seen[slot_ids]
        self._num_seen[slot_ids] = first + counts
        self._grow(slot_ids)
        request = torch.arange(len(slot_ids)).repeat_interleave(counts)
        starts = counts.cumsum(0) - counts
        offset = torch.arange(len(request)) - starts[request]
        positions = first[request] + offset
        slots = self._places(slot_ids[request], positions % self._window)
        # Of more rows than the window holds only the last ones are kept.
        is_kept = positions >= (first + counts)[request] - self._window
        rows = NewRows(positions, torch.where(is_kept, slots, PAD_SLOT))
        self.pending.add(slot_ids[request], rows, features)

    def block_rows(self, slot_ids: torch.Tensor) -> NewRows:
        """Places and positions of a block of each slot, [R * block_size]."""
        offset = torch.arange(self._config.block_size)
        places = self.context_lens(slot_ids)[:, None] + offset
        slots = self._places(slot_ids[:, None].expand_as(places), places)
        positions = self._num_seen[slot_ids][:, None] + offset
        return NewRows(positions.flatten(), slots.flatten())

    def context_lens(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R]: context tokens that a block of each slot sees."""
        return self._num_seen[slot_ids].clamp(max=self._window)

    def num_seen(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R]: context tokens each slot was given; the position of its anchor."""
        return self._num_seen[slot_ids]

    def tables(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int32 [R, pages of a slot]."""
        return self._tables[slot_ids]

    def _places(self, slot_ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        pages = self._tables[slot_ids, places // _PAGE_TOKENS].long()
        return pages * _PAGE_TOKENS + places % _PAGE_TOKENS

    def _grow(self, slot_ids: torch.Tensor) -> None:
        needed = self.context_lens(slot_ids) + self._config.block_size
        for slot_id, num_tokens in zip(slot_ids.tolist(), needed.tolist(), strict=True):
            held = self._pages[slot_id]
            missing = -(-num_tokens // _PAGE_TOKENS) - len(held)
            if missing > 0:
                taken = [self._free_pages.pop() for _ in range(missing)]
                row = self._tables[slot_id, len(held) : len(held) + missing]
                row.copy_(torch.tensor(taken, dtype=torch.int32))
                held += taken
