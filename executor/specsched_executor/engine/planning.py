"""What a scheduler is told about the step to come. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from specsched_protocol.plan import PlanRequest

from specsched_executor.engine.batch import BatchEntry, StepBatch

__all__ = ["PlanFacts", "build_plan_request", "expected_drafts"]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What limits the step after the current one.

    next_draft_tokens: length of the drafts the current step makes. num_silent_rows: how many
    requests without a draft now are expected to have one then. num_waiting_tokens: tokens of
    waiting requests that could be admitted. max_kv_draft_tokens: room for drafts in the KV cache.
    """

    next_draft_tokens: int
    num_silent_rows: int
    num_waiting_tokens: int
    max_kv_draft_tokens: int
    max_num_batched_tokens: int


def build_plan_request(batch: StepBatch, source_step_id: int, facts: PlanFacts) -> PlanRequest:
    """The plan request for the step after `batch`, as it will look if nobody arrives or ends.

    Requests that sample now decode then; a chunked prefill goes on with its next chunk. Waiting
    requests have no slot to name, so they count as rows of prefill only. What turns out
    differently is clamped when the step is formed.
    """
    entries = batch.entries
    num_decoding = sum(entry.samples for entry in entries)
    chunks = _next_chunks(entries, facts.max_num_batched_tokens - num_decoding)
    num_free_rows = facts.max_num_batched_tokens - num_decoding - sum(c for c, _ in chunks)
    num_admitted = max(0, min(facts.num_waiting_tokens, num_free_rows))
    num_final = sum(is_final for _, is_final in chunks)
    num_other = num_decoding + sum(c for c, _ in chunks) + num_admitted
    num_prefill = num_other - num_decoding - num_final
    finals = iter(chunks)
    samples = [entry.samples or next(finals)[1] for entry in entries]
    return PlanRequest(
        step_id=batch.step_id + 1,
        source_step_id=source_step_id,
        num_other_tokens=num_other,
        num_prefill_tokens=num_prefill,
        max_budget=max(0, min(facts.max_num_batched_tokens - num_other, facts.max_kv_draft_tokens)),
        slot_id=_uint32(entry.request.slot_id for entry in entries),
        generation=_uint32(entry.request.generation for entry in entries),
        num_draft_tokens=_uint32(expected_drafts(entries, facts)),
        samples=np.array(samples, dtype=np.bool_),
        weight=np.array([entry.request.request.weight for entry in entries], dtype=np.float32),
        context_tokens=_uint32(entry.first_position + entry.num_base_rows for entry in entries),
        is_greedy=np.array([entry.request.is_greedy for entry in entries], dtype=np.bool_),
    )


def expected_drafts(entries: Sequence[BatchEntry], facts: PlanFacts) -> list[int]:
    """Drafts each request is expected to bring to the next step.

    The drafts present now forecast those to come. Of the requests that have none (no match found,
    or new) the oldest `num_silent_rows` are expected to have full drafts: a plan that counted none
    of them would never verify the first draft after a pause, one that counted all would be priced
    for drafts that mostly do not come. They have no confidence row, so the scheduler's prior
    stands in.
    """
    num_silent_rows = facts.num_silent_rows
    counts = []
    for entry in entries:
        # At least the bonus token is committed first.
        longest = min(facts.next_draft_tokens, max(0, entry.request.max_useful_drafts - 1))
        count = 0
        if entry.num_draft_tokens:
            count = min(entry.num_draft_tokens, longest)
        elif entry.samples and num_silent_rows and longest:
            count = longest
            num_silent_rows -= 1
        counts.append(count)
    return counts


def _next_chunks(entries: Sequence[BatchEntry], num_rows: int) -> list[tuple[int, bool]]:
    """(rows, is_final) of the next chunk of each request inside a prefill."""
    chunks = []
    for entry in entries:
        if entry.samples:
            continue
        num_left = entry.request.num_pending_tokens - entry.num_base_rows
        chunk = max(0, min(num_left, num_rows))
        num_rows -= chunk
        chunks.append((chunk, chunk == num_left))
    return chunks


def _uint32(values: object) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.fromiter(values, dtype=np.uint32)  # type: ignore[call-overload, no-any-return]
