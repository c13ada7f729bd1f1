"""The vocabulary that an executor and a scheduler share about one step.

Leaf module: numpy only. Arrays of one record share their first dimension, the requests of the step
in batch order; row `r` of each array speaks of the same request.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROWS_BOUND_FLAG = 0x80
"""Of StepDecision.flags: rows that the plan did not count on take the place of drafts."""
FILL_SIZE_FLAG = 0x100
"""Of StepDecision.flags: rows that a captured size leaves over take drafts beyond the budget."""
NO_BUDGET_CAP = 0xFFFF_FFFF
"""`max_budget` / `max_verify_len` of a record without such a cap."""


class FallbackReason(enum.StrEnum):
    """Why a step ran without a scheduler's decision."""

    NO_SCHEDULER = "no_scheduler"
    LATE = "late"
    TORN = "torn"
    STALE_SOURCE = "stale_source"
    WRONG_EPOCH = "wrong_epoch"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class ConfidenceRows:
    """Confidences of the drafts made at the end of step `source_step_id`.

    slot_id, generation: uint32 [R]; num_draft_tokens: uint32 [R], drafts that exist in the row;
    confidence: float32 [R, k], values past `num_draft_tokens` are ignored.
    """

    source_step_id: int
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    confidence: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a scheduler must know to decide step `step_id`.

    `source_step_id` (at most step_id - 2) names the confidences to use; drafts verified at
    `step_id` are newer than that (lossless invariant). `num_other_tokens` is T,
    `num_prefill_tokens` P. Per request, [R]: slot_id, generation uint32; num_draft_tokens uint32,
    drafts expected to be present; samples bool, False inside a chunked prefill; weight float32 > 0;
    context_tokens uint32; is_greedy bool, of temperature 0: their confidences are calibrated apart.
    """

    step_id: int
    source_step_id: int
    num_other_tokens: int
    num_prefill_tokens: int
    max_budget: int
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    samples: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float32]
    context_tokens: npt.NDArray[np.uint32]
    is_greedy: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepDecision:
    """A scheduler's answer for one step, as the executor reads it.

    `budget` bounds the sum of verify_len, `max_verify_len` each of them (NO_BUDGET_CAP: no cap).
    `next_draft_tokens` bounds the drafts made at the end of the step. `fairness`: alpha by which
    weights are made fair before drafts are ranked (specsched_protocol.fairness).
    """

    step_id: int
    source_step_id: int
    epoch: int
    budget: int
    max_verify_len: int
    next_draft_tokens: int
    expected_tokens: float
    expected_ms: float
    policy_id: int
    model_state: int
    flags: int
    num_repaired_confidences: int
    decided_ns: int
    fairness: float = 0.0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a finished step cost and brought.

    num_tokens: rows run, drafts included; padded_num_tokens: size of the graph that ran them.
    num_prefill_tokens: prefill rows among them (P). num_sampling: requests that sampled (N).
    asked_draft_tokens: length that was asked for when the drafts of this step were made; 0 where
    none were made.
    Per request that sampled, [N]: slot_id, generation, num_verified (draft tokens), num_accepted
    uint32; teaches bool, False where the target's logits were altered (bias, penalties, a stop held
    off): what became of those drafts says little about others.
    """

    step_id: int
    num_tokens: int
    padded_num_tokens: int
    num_prefill_tokens: int
    num_sampling: int
    asked_draft_tokens: int
    context_tokens: int
    draft_ms: float
    verify_ms: float
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_verified: npt.NDArray[np.uint32]
    num_accepted: npt.NDArray[np.uint32]
    teaches: npt.NDArray[np.bool_]
