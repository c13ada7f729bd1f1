"""Compiled: what was learned and shared out, applied to the step that is being decided."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.fairness import INITIAL_RECENT
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm.atomics import load_relaxed, store_relaxed
from specsched_protocol.shm.plan_arrays import (
    MAX_BUDGET,
    NUM_OTHER_TOKENS,
    NUM_PREFILL_TOKENS,
    NUM_REQUESTS,
    STEP_ID,
)

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED, calibrate_rows
from specsched_scheduler.decision.codes import DecisionFlags, PolicyCode
from specsched_scheduler.decision.draft_length import nearest_load, next_draft_tokens, unpack_plan
from specsched_scheduler.decision.step import PolicyRule, StepPlan
from specsched_scheduler.planner import _state as state_words
from specsched_scheduler.planner._learned import wanted_probe

__all__ = [
    "as_probe",
    "calibrated",
    "draft_tokens_of",
    "follow_load",
    "make_fair",
    "probed_budget",
    "use_all",
]

_FIXED = int(PolicyCode.FIXED)
_THROUGHPUT, _RATIO = int(PolicyCode.THROUGHPUT), int(PolicyCode.RATIO)
_CAPPED = int(DecisionFlags.CAPPED)
_PROBE = int(DecisionFlags.PROBE)
_LOAD = state_words.LOAD


@njit(cache=True, nogil=True)
def draft_tokens_of(rule: Any, layout: Any, state: Any) -> Any:
    """Length of the drafts made at the end of the step in `state`, by its batch size."""
    plan = unpack_plan(load_relaxed(state.draft_plans, load_relaxed(state.counters, _LOAD)))
    return next_draft_tokens(rule, state.request.fixed[STEP_ID], plan, layout.max_draft_tokens)


@njit(cache=True, nogil=True)
def follow_load(state: Any) -> bool:
    """Note the batch size of the step in `state`; whether it is another than before."""
    num_sampling = 0
    for row in range(state.request.fixed[NUM_REQUESTS]):
        num_sampling += 1 if state.request.samples[row] else 0
    before = load_relaxed(state.counters, _LOAD)
    load = nearest_load(before, max(num_sampling, 1))
    store_relaxed(state.counters, _LOAD, load)
    return bool(load != before)


@njit(cache=True, nogil=True)
def make_fair(state: Any, alpha: float) -> None:
    """specsched_protocol.fairness.fair_weights on the private copy of the request."""
    request = state.request
    for row in range(request.fixed[NUM_REQUESTS]):
        slot = np.int64(request.slot_id[row])
        is_known = state.recent_generation[slot] == np.int64(request.generation[row])
        recent = state.recent[slot] if is_known else INITIAL_RECENT
        request.weight[row] *= recent**-alpha


@njit(cache=True, nogil=True)
def calibrated(calibration: Any, state: Any) -> Any:
    """Confidences of the step in `state` as probabilities that hold; the raw ones are left."""
    raw, request = state.gathered.confidence, state.request
    store_relaxed(state.counters, state_words.IS_RAW, calibration.is_identity)
    if calibration.is_identity != 0:
        return raw
    num_rows = request.fixed[NUM_REQUESTS]
    for row in range(num_rows):
        state.sampling_class[row] = GREEDY if request.is_greedy[row] else SAMPLED
    calibrate_rows(calibration, state.sampling_class, num_rows, raw, state.calibrated)
    return state.calibrated


@njit(cache=True, nogil=True)
def probed_budget(words: Any, policy_code: int, request: Any) -> Any:
    """The budget by which this step has the rows that the learner wants tried, -1 for none.

    Only where the policy weighs tokens against time, and not beside a prefill chunk, whose rows
    cost otherwise.
    """
    fixed = request.fixed
    budget = wanted_probe(words) - fixed[NUM_OTHER_TOKENS]
    weighs_time = policy_code in (_THROUGHPUT, _RATIO)
    if budget < 0 or not weighs_time or fixed[NUM_PREFILL_TOKENS] > 0:
        return np.int64(-1)
    num_drafts = np.int64(0)
    for row in range(fixed[NUM_REQUESTS]):
        num_drafts += np.int64(request.num_draft_tokens[row]) if request.samples[row] else 0
    return budget if budget <= min(num_drafts, fixed[MAX_BUDGET]) else np.int64(-1)


@njit(cache=True, nogil=True)
def use_all(rule: Any, layout: Any) -> Any:
    """The rule that uses its budget up."""
    k = np.float64(layout.max_draft_tokens)
    return PolicyRule(_FIXED, k, np.inf, 0.0, rule.fairness, rule.left_out)


@njit(cache=True, nogil=True)
def as_probe(plan: Any) -> Any:
    """A plan of `use_all`, told apart from one that is the best known."""
    flags = (plan.flags & ~_CAPPED) | _PROBE
    return StepPlan(
        plan.budget,
        NO_BUDGET_CAP,
        plan.model_state,
        flags,
        plan.num_repaired,
        plan.num_drafts,
        plan.expected_tokens,
        plan.expected_ms,
    )
