"""What a scheduler is told about the step to come. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import PlanRequest

from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots

__all__ = ["PlanFacts", "build_plan_request", "expected_drafts"]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What limits the step after the current one.

    next_draft_tokens: length of the drafts the current step makes. num_silent_rows: how many
    requests without a draft now are expected to have one then. num_waiting_tokens: tokens of
    waiting requests that could be admitted. max_kv_draft_tokens: room for drafts in the KV cache.
    overlaps: the current step was launched and is still in flight when the next one is formed.
    """

    next_draft_tokens: int
    num_silent_rows: int
    num_waiting_tokens: int
    max_kv_draft_tokens: int
    max_num_batched_tokens: int
    overlaps: bool = False


def build_plan_request(
    batch: StepBatch, columns: SlotColumns, source_step_id: int, facts: PlanFacts
) -> PlanRequest:
    """The plan request for the step after `batch`, as it will look if nobody arrives or ends.

    Requests that sample now decode then; a chunked prefill goes on with its next chunk. Waiting
    requests have no slot to name, so they count as rows of prefill only. What turns out
    differently is clamped when the step is formed.
    """
    slots = batch.slot_ids
    num_decoding = batch.num_sampling
    samples, num_chunk_rows = _next_chunks(
        batch, columns, facts.max_num_batched_tokens - num_decoding
    )
    num_free_rows = facts.max_num_batched_tokens - num_decoding - num_chunk_rows
    num_admitted = max(0, min(facts.num_waiting_tokens, num_free_rows))
    num_other = num_decoding + num_chunk_rows + num_admitted
    num_prefill = num_other - int(np.count_nonzero(samples))
    return PlanRequest(
        step_id=batch.step_id + 1,
        source_step_id=source_step_id,
        num_other_tokens=num_other,
        num_prefill_tokens=num_prefill,
        max_budget=max(0, min(facts.max_num_batched_tokens - num_other, facts.max_kv_draft_tokens)),
        slot_id=slots.astype(np.uint32),
        generation=batch.generations.astype(np.uint32),
        num_draft_tokens=expected_drafts(batch, columns, facts).astype(np.uint32),
        samples=samples,
        weight=columns.weight[slots],
        context_tokens=(batch.first_positions + batch.num_base_rows).astype(np.uint32),
        is_greedy=columns.is_greedy[slots],
    )


def expected_drafts(batch: StepBatch, columns: SlotColumns, facts: PlanFacts) -> Slots:
    """Drafts each request is expected to bring to the next step, [R].

    Where steps overlap they are being made, and as many of them can be verified as are useful
    should the step in flight commit a single token. Else the drafts present now forecast those to
    come. Of the requests that have none (no match found, or new) the oldest `num_silent_rows` are
    expected to have full drafts: a plan that counted none of them would never verify the first
    draft after a pause, one that counted all would be priced for drafts that mostly do not come.
    They have no confidence row, so the scheduler's prior stands in.
    """
    slots = batch.slot_ids
    if facts.overlaps:
        made: Slots = columns.num_draft_tokens[slots]
        return np.minimum(made, columns.max_useful_drafts(slots))
    # At least one token is committed first, and one place is the bonus token's.
    left: Slots = columns.max_total_tokens[slots] - columns.num_tokens[slots]
    useful = np.maximum(left - 2, 0)
    longest = np.minimum(useful, facts.next_draft_tokens)
    is_silent = batch.samples & (batch.num_draft_tokens == 0) & (longest > 0)
    speaks = is_silent & (np.cumsum(is_silent) <= facts.num_silent_rows)
    return np.where(speaks, longest, np.minimum(batch.num_draft_tokens, longest))


def _next_chunks(
    batch: StepBatch, columns: SlotColumns, num_rows: int
) -> tuple[npt.NDArray[np.bool_], int]:
    """Who samples in the next step, [R], and the rows of the chunks of those inside a prefill."""
    if not batch.num_prefill_tokens and batch.num_sampling == len(batch.samples):
        return batch.samples, 0
    samples, num_chunk_rows = batch.samples.copy(), 0
    for index in np.flatnonzero(~samples).tolist():
        num_done = batch.first_positions[index] + batch.num_base_rows[index]
        num_left = int(columns.num_tokens[batch.slot_ids[index]] - num_done)
        chunk = max(0, min(num_left, num_rows - num_chunk_rows))
        num_chunk_rows += chunk
        samples[index] = chunk == num_left
    return samples, num_chunk_rows
