"""Context keys and values of the requests that are drafted for, in pages.

A request's context token at position p lies at place p, or p mod window where the drafter sees only
a window: rotary angles are applied before storing and attention does not mind the order. The rows
of the block that is being drafted lie behind the context and are overwritten by what comes next.

Keys and values are projected from features of the target. They are written when a draft is made:
until then the features are kept of those tokens alone that the next draft can see, so that steps
without drafts cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from specsched_executor.core import PAD_SLOT, ModelBatch
from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.drafters.dspark.recent_features import Ints, RecentFeatures
from specsched_executor.model.kv_cache import PagedKvCache

__all__ = ["DraftCache", "NewRows"]

_PAGE_TOKENS = 16
_MAX_UNWRITTEN_TOKENS = 128
"""Of a slot: 720 KiB for five layers of 576 in bfloat16. A drafter that sees no more of a context
projects only what its drafts read, however long nothing was drafted."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """Context tokens to be written: features [n, layers * hidden]; positions, slots int64 [n], slot
    PAD_SLOT for those not kept."""

    features: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class DraftCache:
    """Pages of `num_slots` requests, taken as contexts are written and given back at release.

    There are enough for all slots at their longest context, so taking one never fails. pages: of
    all slots, by drafter layer; whoever reads those of a slot writes its `unwritten` rows first.
    """

    def __init__(
        self,
        config: DSparkConfig,
        num_slots: int,
        max_context_tokens: int,
        feature_dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._window = min(config.window or max_context_tokens, max_context_tokens)
        self._recent = RecentFeatures(
            num_slots,
            min(self._window, _MAX_UNWRITTEN_TOKENS),
            config.target_layer_ids,
            config.hidden_size,
            feature_dtype,
        )
        per_slot = -(-(self._window + config.block_size) // _PAGE_TOKENS)
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
        self._num_written_of = np.zeros(num_slots, dtype=np.int64)
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
        self._free_pages += self._pages_of[slot_id]
        self._pages_of[slot_id] = []
        self._num_seen_of[slot_id] = 0
        self._num_written_of[slot_id] = 0
        self._generations[slot_id] = 0

    def can_keep(self, slot_ids: torch.Tensor, num_new: Ints) -> bool:
        """Whether the next num_new[r] context tokens of each slot can stay unwritten."""
        if self._window <= self._recent.num_tokens:
            return True
        of_slots = slot_ids.numpy()
        num_unwritten = self._num_seen_of[of_slots] + num_new - self._num_written_of[of_slots]
        return bool((num_unwritten <= self._recent.num_tokens).all())

    def keep(
        self, slot_ids: torch.Tensor, num_new: Ints, features: Mapping[int, torch.Tensor]
    ) -> None:
        """Take in the next num_new[r] context tokens of each slot, to be written once they are
        read.

        features: target layer -> [sum of num_new, hidden], rows request after request.
        """
        owners, positions = self._see(slot_ids.numpy(), num_new)
        rows = self._recent.side_by_side(features)
        if num_new.max(initial=0) > self._recent.num_tokens:
            is_seen = positions >= self._num_seen_of[owners] - self._window
            owners, positions, rows = owners[is_seen], positions[is_seen], rows[is_seen]
        self._recent.put(owners, positions, rows)

    def unwritten(self, slot_ids: torch.Tensor) -> NewRows:
        """What is left to write of these slots, to be written at once."""
        of_slots = slot_ids.numpy()
        end = self._num_seen_of[of_slots]
        first = np.maximum(self._num_written_of[of_slots], end - self._window)
        owners, positions = _tokens(of_slots, first, end)
        self._reserve(of_slots)
        return self._new_rows(self._recent.take(owners, positions), owners, positions)

    def append(
        self, slot_ids: torch.Tensor, num_new: Ints, features: Mapping[int, torch.Tensor]
    ) -> NewRows:
        """As `keep`, to be written at once; nothing may be unwritten of these slots before."""
        of_slots = slot_ids.numpy()
        owners, positions = self._see(of_slots, num_new)
        self._reserve(of_slots)
        return self._new_rows(self._recent.side_by_side(features), owners, positions)

    def block_batch(self, slot_ids: torch.Tensor, token_ids: torch.Tensor) -> ModelBatch:
        """The step that runs a block of each slot, token_ids: int64 [R, block_size]."""
        num_requests, block_size = token_ids.shape
        offset = torch.arange(block_size)
        context_lens = self._num_seen[slot_ids].clamp(max=self._window)
        places = context_lens[:, None] + offset
        positions = self._num_seen[slot_ids][:, None] + offset
        pages = self._tables[slot_ids[:, None], places // _PAGE_TOKENS].long()
        return ModelBatch(
            token_ids=token_ids.flatten(),
            positions=positions.flatten(),
            slot_mapping=(pages * _PAGE_TOKENS + places % _PAGE_TOKENS).flatten(),
            query_start_loc=torch.arange(num_requests + 1) * block_size,
            context_lens=context_lens + block_size,
            block_tables=self._tables[slot_ids],
            logit_rows=torch.empty(0, dtype=torch.int64),
        )

    def num_seen(self, slot_ids: torch.Tensor) -> torch.Tensor:
        """int64 [R]: context tokens each slot was given; the position of its anchor."""
        return self._num_seen[slot_ids]

    def _see(self, slot_ids: Ints, num_new: Ints) -> tuple[Ints, Ints]:
        """Count new context tokens; their slots and positions."""
        first = self._num_seen_of[slot_ids]
        end = first + num_new
        self._num_seen_of[slot_ids] = end
        return _tokens(slot_ids, first, end)

    def _reserve(self, slot_ids: Ints) -> None:
        """Have pages for the context of these slots and a block; it counts as written."""
        num_seen = self._num_seen_of[slot_ids]
        self._num_written_of[slot_ids] = num_seen
        context_lens = np.minimum(num_seen, self._window)
        needed = -(-(context_lens + self._config.block_size) // _PAGE_TOKENS)
        for slot_id, num_pages in zip(slot_ids.tolist(), needed.tolist(), strict=True):
            held = self._pages_of[slot_id]
            if num_pages > len(held):
                taken = [self._free_pages.pop() for _ in range(num_pages - len(held))]
                self._tables_of[slot_id, len(held) : num_pages] = taken
                held += taken

    def _new_rows(self, features: torch.Tensor, owners: Ints, positions: Ints) -> NewRows:
        places = positions % self._window
        pages = self._tables_of[owners, places // _PAGE_TOKENS].astype(np.int64)
        slots = pages * _PAGE_TOKENS + places % _PAGE_TOKENS
        # Of more rows than the window holds only the last ones are kept.
        slots[positions < self._num_seen_of[owners] - self._window] = PAD_SLOT
        return NewRows(features, torch.from_numpy(positions), torch.from_numpy(slots))


def _tokens(slot_ids: Ints, first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Slots and positions of the tokens first[r] to end[r] of each slot, one slot after another."""
    num = end - first
    owners = slot_ids.repeat(num)
    return owners, np.arange(len(owners)) + (first - num.cumsum() + num).repeat(num)
