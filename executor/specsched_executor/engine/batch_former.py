"""Which rows run in the next step: anchors first, then drafts, then prefill chunks."""

from __future__ import annotations

from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.engine.residency import Residency

__all__ = ["BatchFormer"]


class BatchFormer:
    """Forms step batches within `max_num_batched_tokens` rows.

    While a prefill waits, drafts leave it at least half of the rows that the anchors leave over.
    """

    def __init__(self, residency: Residency, max_num_batched_tokens: int) -> None:
        self._residency = residency
        self._max_num_batched_tokens = max_num_batched_tokens

    def form(self, step_id: int) -> StepBatch | None:
        """The batch of this step; None where nothing can run. Admits, grows and preempts."""
        decoding = self._secure_anchors()
        entries = [self._decode_entry(request) for request in decoding]
        num_free_rows = self._max_num_batched_tokens - len(entries)
        num_drafts = sum(entry.num_draft_tokens for entry in entries)
        entries += self._prefill_entries(num_free_rows - min(num_drafts, num_free_rows // 2))
        if not entries:
            return None
        num_base_rows = sum(entry.num_base_rows for entry in entries)
        return StepBatch(step_id, tuple(entries), self._max_num_batched_tokens - num_base_rows)

    def _secure_anchors(self) -> list[ActiveRequest]:
        """Decoding requests that have room for their anchor; older ones never give way."""
        for request in self._residency.running:
            is_resident = request.block_ids
            if is_resident and request.num_pending_tokens == 1:
                self._residency.secure(request, request.max_num_tokens)
        running = self._residency.running
        return [r for r in running if r.num_pending_tokens == 1 and not r.surely_ends]

    def _decode_entry(self, request: ActiveRequest) -> BatchEntry:
        num_drafts = min(request.num_draft_tokens, request.max_useful_drafts)
        while not self._residency.grow(request, request.max_num_tokens + num_drafts):
            num_drafts -= 1
        return BatchEntry(request, request.max_num_tokens - 1, 1, True, num_drafts)

    def _prefill_entries(self, num_rows: int) -> list[BatchEntry]:
        entries = []
        pending = [r for r in self._residency.running if r.num_pending_tokens > 1]
        while num_rows > 0:
            request = pending.pop(0) if pending else self._residency.admit_next()
            if request is None:
                break
            entry = _prefill_entry(request, num_rows)
            entries.append(entry)
            num_rows -= entry.num_base_rows
        return entries


def _prefill_entry(request: ActiveRequest, max_rows: int) -> BatchEntry:
    num_rows = min(request.num_pending_tokens, max_rows)
    is_final = num_rows == request.num_pending_tokens
    return BatchEntry(request, request.num_cached_tokens, num_rows, is_final, 0)
