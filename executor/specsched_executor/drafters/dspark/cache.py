"""Context keys and values of the requests that are drafted for, in pages.

A request's context token at position p lies at place p, or p mod window where the drafter sees only
a window: rotary angles are applied before storing and attention does not mind the order. The rows
of the block that is being drafted lie behind the context and are overwritten by what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import PAD_SLOT, ModelBatch
from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.drafters.dspark.pending import NewRows, PendingRows
from specsched_executor.model.kv_cache import PagedKvCache

__all__ = ["DraftCache", "NewRows"]

_PAGE_TOKENS = 16
_MAX_PENDING_ROWS = 2048
"""A window of 16 requests: many rows at once take less time each, and those that fall out of the
window or whose request ends before anything is drafted take none. 12 MiB for five layers of 576."""


class DraftCache:
    """Pages of `num_slots` requests, taken as contexts grow and given back at release.

    There are enough for all slots at their longest context, so taking one never fails.

    pages: of all slots, by drafter layer. pending: context rows that have their places and are
    still to be written; whoever reads the cache writes them first.
    """

    def __init__(self, config: DSparkConfig, num_slots: int, max_context_tokens: int) -> None:
        self._config = config
        self._window = min(config.window or max_context_tokens, max_context_tokens)
        per_slot = -(-(self._window + config.block_size) // _PAGE_TOKENS)
        self.pending = PendingRows(_MAX_PENDING_ROWS)
        self._free_pages = list(reversed(range(num_slots * per_slot)))
        self.pages = PagedKvCache.allocate(
            config.num_layers,
            num_slots * per_slot,
            _PAGE_TOKENS,
            config.num_kv_heads,
            config.head_dim,
        )
        self._pages_of: list[list[int]] = [[] for _ in range(num_slots)]
        self._generations = np.zeros(num_slots, dtype=np.int64)
        # Kept by numpy, which takes a fifth of torch's time for so few numbers: that is most of
        # what a step without drafts costs. What reads them for a draft sees them as tensors.
        self._tables_of = np.zeros((num_slots, per_slot), dtype=np.int32)
        self._num_seen_of = np.zeros(num_slots, dtype=np.int64)
        self._tables = torch.from_numpy(self._tables_of)
        self._num_seen = torch.from_numpy(self._num_seen_of)

    @property
    def num_free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free_pages)

    def claim(self, slot_ids: torch.Tensor, generations: torch.Tensor) -> None:
        """Make sure that these slots, int64 [R], hold nothing of an earlier request."""
        slots, of_whom = slot_ids.numpy(), generations.numpy()
        is_stale = self._generations[slots] != of_whom
        if is_stale.any():
            for slot_id in slots[is_stale].tolist():
                self.release(slot_id)
            self._generations[slots] = of_whom

    def release(self, slot_id: int) -> None:
        """Give back the pages of a slot."""
        self.pending.drop(slot_id)
        self._free_pages += self._pages_of[slot_id]
        self._pages_of[slot_id] = []
        self._num_seen_of[slot_id] = 0
        self._generations[slot_id] = 0

    def append(
        self,
        slot_ids: torch.Tensor,
        num_new: npt.NDArray[np.int64],
        features: Mapping[int, torch.Tensor],
    ) -> None:
        """Find places for the next num_new[r] context tokens of each slot, and leave them pending.

        features: target layer -> [sum of num_new, hidden], rows request after request.
        """
        of_slots = slot_ids.numpy()
        first = self._num_seen_of[of_slots]
        end = first + num_new
        self._num_seen_of[of_slots] = end
        self._grow(of_slots, np.minimum(end, self._window))
        owners = of_slots.repeat(num_new)
        # Row i of a request is at its first new position + i.
        positions = np.arange(len(owners)) + (first - num_new.cumsum() + num_new).repeat(num_new)
        places = positions % self._window
        pages = self._tables_of[owners, places // _PAGE_TOKENS].astype(np.int64)
        slots = pages * _PAGE_TOKENS + places % _PAGE_TOKENS
        # Of more rows than the window holds only the last ones are kept.
        slots[positions < (end - self._window).repeat(num_new)] = PAD_SLOT
        self.pending.add(owners, positions, slots, features)

    def block_batch(self, slot_ids: torch.Tensor, token_ids: torch.Tensor) -> ModelBatch:
        """The step that runs a block of each slot, token_ids: int64 [R, block_size]."""
        num_requests, block_size = token_ids.shape
        offset = torch.arange(block_size)
        context_lens = self._num_seen[slot_ids].clamp(max=self._window)
        places = context_lens[:, None] + offset
        positions = self._num_seen[slot_ids][:, None] + offset
        return ModelBatch(
            token_ids=token_ids.flatten(),
            positions=positions.flatten(),
            slot_mapping=self._places(slot_ids[:, None].expand_as(places), places).flatten(),
            query_start_loc=torch.arange(num_requests + 1) * block_size,
            context_lens=context_lens + block_size,
            block_tables=self._tables[slot_ids],
            logit_rows=torch.empty(0, dtype=torch.int64),
        )

    def num_seen(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R]: context tokens each slot was given; the position of its anchor."""
        return self._num_seen[slot_ids]

    def _places(self, slot_ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        pages = self._tables[slot_ids, places // _PAGE_TOKENS].long()
        return pages * _PAGE_TOKENS + places % _PAGE_TOKENS

    def _grow(self, slot_ids: npt.NDArray[np.int64], context_lens: npt.NDArray[np.int64]) -> None:
        needed = -(-(context_lens + self._config.block_size) // _PAGE_TOKENS)
        for slot_id, num_pages in zip(slot_ids.tolist(), needed.tolist(), strict=True):
            held = self._pages_of[slot_id]
            if num_pages > len(held):
                taken = [self._free_pages.pop() for _ in range(num_pages - len(held))]
                self._tables_of[slot_id, len(held) : num_pages] = taken
                held += taken
