"""Small plan requests, confidences and reports for the tests of the data plane."""

from __future__ import annotations

import numpy as np
from specsched_protocol.plan import NO_BUDGET_CAP, ConfidenceRows, PlanRequest, StepReport


def make_rows(
    source_step_id: int,
    *,
    num_rows: int = 3,
    max_draft_tokens: int = 4,
    num_draft_tokens: int | None = None,
    confidence: float = 0.9,
    generation: int = 1,
) -> ConfidenceRows:
    """Confidences of rows 0..num_rows-1, all alike."""
    drafts = max_draft_tokens if num_draft_tokens is None else num_draft_tokens
    return ConfidenceRows(
        source_step_id=source_step_id,
        slot_id=np.arange(num_rows, dtype=np.uint32),
        generation=np.full(num_rows, generation, dtype=np.uint32),
        num_draft_tokens=np.full(num_rows, drafts, dtype=np.uint32),
        confidence=np.full((num_rows, max_draft_tokens), confidence, dtype=np.float32),
    )


def make_request(
    step_id: int,
    *,
    source_step_id: int | None = None,
    num_rows: int = 3,
    num_draft_tokens: int = 4,
    max_budget: int = NO_BUDGET_CAP,
    generation: int = 1,
) -> PlanRequest:
    """A plan request of rows 0..num_rows-1, all decoding, by default from step_id - 2."""
    return PlanRequest(
        step_id=step_id,
        source_step_id=step_id - 2 if source_step_id is None else source_step_id,
        num_other_tokens=num_rows,
        num_prefill_tokens=0,
        max_budget=max_budget,
        slot_id=np.arange(num_rows, dtype=np.uint32),
        generation=np.full(num_rows, generation, dtype=np.uint32),
        num_draft_tokens=np.full(num_rows, num_draft_tokens, dtype=np.uint32),
        samples=np.ones(num_rows, dtype=np.bool_),
        weight=np.ones(num_rows, dtype=np.float32),
        context_tokens=np.full(num_rows, 100, dtype=np.uint32),
        is_greedy=np.arange(num_rows) % 2 == 1,
    )


def make_report(step_id: int, *, num_rows: int = 2, num_accepted: int = 1) -> StepReport:
    """A report of rows 0..num_rows-1 with 2 verified drafts each."""
    return StepReport(
        step_id=step_id,
        num_tokens=3 * num_rows,
        padded_num_tokens=8,
        num_prefill_tokens=1,
        num_sampling=num_rows,
        asked_draft_tokens=4,
        context_tokens=100 * num_rows,
        draft_ms=0.25,
        verify_ms=1.5,
        slot_id=np.arange(num_rows, dtype=np.uint32),
        generation=np.ones(num_rows, dtype=np.uint32),
        num_verified=np.full(num_rows, 2, dtype=np.uint32),
        num_accepted=np.full(num_rows, num_accepted, dtype=np.uint32),
        teaches=np.arange(num_rows) % 2 == 0,
    )
