"""Made-up batches, without an engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns
from specsched_executor.engine.stopping import StopRules

NUM_SLOTS = 8


@dataclass(frozen=True)
class Row:
    """A request of a batch. total: tokens known, by default those that are cached after the step.

    limit: tokens it may have at the end.
    """

    slot_id: int
    cached: int = 0
    base: int = 1
    total: int | None = None
    drafts: int = 0
    limit: int = 100
    weight: float = 1.0

    @property
    def num_tokens(self) -> int:
        return self.cached + self.base if self.total is None else self.total


def made_batch(step_id: int, *rows: Row) -> tuple[StepBatch, SlotColumns]:
    columns = SlotColumns(NUM_SLOTS, max_blocks=1, max_context_tokens=1000)
    requests = [_request(row) for row in rows]
    for request, row in zip(requests, rows, strict=True):
        columns.enter(request)
        columns.num_cached_tokens[row.slot_id] = row.cached
    slots = np.array([row.slot_id for row in rows], dtype=np.int64)
    batch = StepBatch(
        step_id,
        requests,
        slot_ids=slots,
        generations=columns.generation[slots],
        first_positions=np.array([row.cached for row in rows], dtype=np.int64),
        num_base_rows=np.array([row.base for row in rows], dtype=np.int64),
        num_draft_tokens=np.array([row.drafts for row in rows], dtype=np.int64),
        samples=np.array([row.cached + row.base == row.num_tokens for row in rows], dtype=np.bool_),
        teaches=np.ones(len(rows), dtype=np.bool_),
        max_draft_rows=0,
    )
    return batch, columns


def _request(row: Row) -> ActiveRequest:
    sampling = SamplingParams()
    return ActiveRequest(
        request=GenerationRequest(f"r{row.slot_id}", (1,), sampling, row.weight),
        sink=lambda delta: None,
        seed=0,
        max_total_tokens=row.limit,
        stop_rules=StopRules.of(sampling, (), row.limit, None),
        tokens=np.ones(row.num_tokens, dtype=np.int32),
        slot_id=row.slot_id,
        generation=1,
    )
