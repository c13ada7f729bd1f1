"""Which rows run in the next step: anchors first, then drafts, then prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_executor.core import PAD_SLOT
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.decoding import Decoding, DecodingFinder
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns

__all__ = ["BatchFormer"]


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
        prefills: list[ActiveRequest] = []
        chunks: list[int] = []
        if decoding.num_filling or self._residency.num_waiting:
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
        num_decoding = len(decoding.slots)
        fields: tuple[npt.NDArray[Any], ...] = (
            decoding.slots,
            decoding.generations,
            decoding.max_num_tokens - 1,
            np.ones(num_decoding, dtype=np.int64),
            decoding.num_drafts,
            np.ones(num_decoding, dtype=np.bool_),
        )
        if prefills:
            of_prefills = self._prefill_fields(prefills, chunks)
            fields = tuple(np.concatenate(both) for both in zip(fields, of_prefills, strict=True))
        slot_ids, generations, first_positions, num_base_rows, num_draft_tokens, samples = fields
        return StepBatch(
            step_id,
            [*self._residency.requests(decoding.slots), *prefills],
            slot_ids=slot_ids,
            generations=generations,
            first_positions=first_positions,
            num_base_rows=num_base_rows,
            num_draft_tokens=num_draft_tokens,
            samples=samples,
            teaches=self._columns.teach(slot_ids),
            max_draft_rows=self._max_num_batched_tokens - num_decoding - sum(chunks),
        )

    def _prefill_fields(
        self, prefills: Sequence[ActiveRequest], chunks: Sequence[int]
    ) -> tuple[npt.NDArray[Any], ...]:
        """Of the requests inside a prefill, as StepBatch has them: slot_ids to samples."""
        columns = self._columns
        slots = np.array([request.slot_id for request in prefills], dtype=np.int64)
        chunk = np.array(chunks, dtype=np.int64)
        cached = columns.num_cached_tokens[slots]
        is_whole = cached + chunk == columns.num_tokens[slots]
        return slots, columns.generation[slots], cached, chunk, np.zeros_like(slots), is_whole
