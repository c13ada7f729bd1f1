"""What the compiled decision is told and what it answers, as tuples of arrays and numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.codes import NO_CAP

__all__ = ["PolicyRule", "StepInput", "StepPlan"]


class PolicyRule(NamedTuple):
    """A built-in policy, by a PolicyCode other than PYTHON, and what it was given.

    parameter: k of `fixed`, p of `threshold`, else 0. max_step_ms, min_tokens_per_second: bounds of
    `slo`; inf and 0 bind nothing. fairness: alpha, which the caller applies to the weights.
    left_out: Features; those outside of a decision are the caller's to leave out.
    """

    code: int
    parameter: float = 0.0
    max_step_ms: float = math.inf
    min_tokens_per_second: float = 0.0
    fairness: float = 0.0
    left_out: int = 0


class StepInput(NamedTuple):
    """One step to decide; of each array the first `num_requests` rows count.

    confidence: float32 or float64 [R, k], anything where a row or value has none.
    num_draft_tokens: uint32 [R], clamped to k. has_confidence, samples: uint8 or bool [R].
    weight: float32 or float64 [R], >= 0; an impossible one counts as 1. context_tokens: uint32 or
    wider [R]. num_other_tokens (T) >= num_prefill_tokens (P) >= 0. max_budget: NO_CAP for none.
    next_draft_tokens: length of the drafts made at the end of the step, NO_CAP for full ones.
    """

    confidence: npt.NDArray[np.floating[Any]]
    num_draft_tokens: npt.NDArray[np.integer[Any]]
    has_confidence: npt.NDArray[Any]
    samples: npt.NDArray[Any]
    weight: npt.NDArray[np.floating[Any]]
    context_tokens: npt.NDArray[np.integer[Any]]
    num_requests: int
    num_other_tokens: int
    num_prefill_tokens: int
    max_budget: int
    next_draft_tokens: int = NO_CAP


class StepPlan(NamedTuple):
    """What was decided.

    budget: B. max_verify_len: cap per request, NO_CAP for none. model_state: a ModelState. flags:
    DecisionFlags. num_repaired: single confidences replaced. num_drafts: eligible draft positions.
    expected_tokens: N + survival of the admitted drafts. expected_ms: predicted time of the whole
    step, prefill included; 0 where there is no model.
    """

    budget: int
    max_verify_len: int
    model_state: int
    flags: int
    num_repaired: int
    num_drafts: int
    expected_tokens: float
    expected_ms: float
