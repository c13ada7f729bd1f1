"""Which rows run in the next step: anchors first, then drafts, then prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specsched_executor.core import PAD_SLOT
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.decoding import Decoding, DecodingFinder
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns

__all__ = ["BatchFormer"]

_Value = TypeVar("_Value", bound=np.generic)


class BatchFormer:
    """Forms step batches within `max_num_batched_tokens` rows.

    While a prefill waits, drafts leave it at least half of the rows that the anchors leave over.
    """

    def __init__(
        self, residency: Residency, columns: SlotColumns, max_num_batched_tokens: int
    ) -> None:
        self._residency = residency
        self._columns = columns
        self._finder = DecodingFinder(columns)
        self._max_num_batched_tokens = max_num_batched_tokens

    def form(self, step_id: int) -> StepBatch | None:
        """The batch of this step; None where nothing can run. Admits, grows and preempts."""
        decoding = self._secure()
        num_decoding = len(decoding.slots)
        num_free_rows = self._max_num_batched_tokens - num_decoding
        num_left = num_free_rows - min(int(decoding.num_drafts.sum()), num_free_rows // 2)
        prefills, chunks = self._prefill_chunks(num_left)
        if not num_decoding and not prefills:
            return None
        return self._batch(step_id, decoding, prefills, chunks)

    def _secure(self) -> Decoding:
        """Decoding requests, with room in the KV cache for their anchors and drafts."""
        residency = self._residency
        decoding = self._finder.find(residency.running_slots)
        wanted = decoding.max_num_tokens + decoding.num_drafts
        if residency.grow_all(decoding.slots, wanted):
            return decoding
        if not residency.grow_all(decoding.slots, decoding.max_num_tokens):
            decoding = self._secure_anchors(decoding)
        num_drafts, most = decoding.num_drafts, decoding.max_num_tokens
        for index, request in enumerate(residency.requests(decoding.slots)):
            while not residency.grow(request, int(most[index] + num_drafts[index])):
                num_drafts[index] -= 1
        return decoding

    def _secure_anchors(self, decoding: Decoding) -> Decoding:
        """Those left that have room for their anchor; older ones never give way."""
        for request in self._residency.requests(decoding.slots):
            if request.slot_id != PAD_SLOT:  # it may have been preempted for an older one
                self._residency.secure(request)
        return self._finder.find(self._residency.running_slots)

    def _prefill_chunks(self, num_rows: int) -> tuple[list[ActiveRequest], list[int]]:
        """Requests inside a prefill, oldest first, and the rows of each."""
        columns, slots = self._columns, self._residency.running_slots
        pending = self._residency.requests(slots[columns.num_pending_tokens(slots) > 1])
        requests, chunks = [], []
        while num_rows > 0:
            request = pending.pop(0) if pending else self._residency.admit_next()
            if request is None:
                break
            slot = request.slot_id
            num_pending = int(columns.num_tokens[slot] - columns.num_cached_tokens[slot])
            requests.append(request)
            chunks.append(min(num_pending, num_rows))
            num_rows -= chunks[-1]
        return requests, chunks

    def _batch(
        self,
        step_id: int,
        decoding: Decoding,
        prefills: Sequence[ActiveRequest],
        chunks: Sequence[int],
    ) -> StepBatch:
        columns, num_decoding = self._columns, len(decoding.slots)
        filling = np.array([request.slot_id for request in prefills], dtype=np.int64)
        chunk = np.array(chunks, dtype=np.int64)
        cached = columns.num_cached_tokens[filling]
        slot_ids = _join(decoding.slots, filling)
        is_whole = cached + chunk == columns.num_tokens[filling]
        return StepBatch(
            step_id,
            [*self._residency.requests(decoding.slots), *prefills],
            slot_ids=slot_ids,
            generations=_join(decoding.generations, columns.generation[filling]),
            first_positions=_join(decoding.max_num_tokens - 1, cached),
            num_base_rows=_join(np.ones(num_decoding, dtype=np.int64), chunk),
            num_draft_tokens=_join(decoding.num_drafts, np.zeros_like(filling)),
            samples=_join(np.ones(num_decoding, dtype=np.bool_), is_whole),
            teaches=columns.teach(slot_ids),
            max_draft_rows=self._max_num_batched_tokens - num_decoding - sum(chunks),
        )


def _join(
    of_decoding: npt.NDArray[_Value], of_prefills: npt.NDArray[_Value]
) -> npt.NDArray[_Value]:
    """Both, one after the other; most steps have no prefill."""
    if not len(of_prefills):
        return of_decoding
    return np.concatenate([of_decoding, of_prefills])
