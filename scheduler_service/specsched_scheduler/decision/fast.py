"""The decision for one step, compiled: no GIL, no allocation, no Python objects.

`decide_step` gives the budget of `specsched_scheduler.decision.reference`, bit for bit, and is what
the planner loop calls. Allocate once and keep:

    table = cost_model.compile()                        # decision.cost.CostTable
    prior = new_running_mean(max_draft_tokens)          # decision.workspace.RunningMean
    workspace = new_workspace(max_requests, max_draft_tokens)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from specsched_scheduler.decision._gains import (
    Batch,
    Gains,
    collect_gains,
    sum_admitted_survival,
    summarise_batch,
)
from specsched_scheduler.decision._order import Choice, first_maximum, order_all, sum_first
from specsched_scheduler.decision._price import Objective, draft_ms_at, price_at, verify_ms_at
from specsched_scheduler.decision._search import search_budget
from specsched_scheduler.decision.codes import NO_CAP, DecisionFlags, ModelState, PolicyCode
from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.step import PolicyRule, StepInput, StepPlan
from specsched_scheduler.decision.workspace import RunningMean, Workspace

__all__ = ["StepPlan", "decide_step"]

# Numba inlines module integers; enum members it would look up.
THROUGHPUT = int(PolicyCode.THROUGHPUT)
GREEDY_CAUSAL = int(PolicyCode.GREEDY_CAUSAL)
FIXED = int(PolicyCode.FIXED)
THRESHOLD = int(PolicyCode.THRESHOLD)
OFF = int(PolicyCode.OFF)
OK, NO_MODEL = int(ModelState.OK), int(ModelState.NO_MODEL)
FLAT, CAPPED = int(DecisionFlags.FLAT), int(DecisionFlags.CAPPED)
REPAIRED, PRIOR = int(DecisionFlags.REPAIRED), int(DecisionFlags.PRIOR)
EXTRAPOLATED = int(DecisionFlags.EXTRAPOLATED)


@njit(cache=True, nogil=True)
def _objective_of(table: CostTable, batch: Batch, num_rows: int, num_left_out: int) -> Any:
    """The ratio to maximise, with `num_left_out` prefill rows charged to nobody."""
    relative = batch.context_tokens - table.profiled_context * batch.num_sampling
    return Objective(
        table,
        batch.total_weight,
        batch.max_weight,
        num_rows,
        draft_ms_at(table, batch.num_sampling),
        verify_ms_at(table, num_rows) - verify_ms_at(table, num_rows - num_left_out),
        table.context_ms_per_token * relative,
    )


@njit(cache=True, nogil=True)
def _search(
    policy_code: int, objective: Objective, num_gains: int, max_budget: int, workspace: Workspace
) -> Any:
    """The choice of a policy that maximises the ratio."""
    reach = min(max_budget, num_gains)
    if policy_code != GREEDY_CAUSAL:
        return search_budget(objective, num_gains, reach, workspace)
    order_all(workspace, num_gains, objective.max_weight)
    return first_maximum(objective, workspace.ordered, reach, True)


@njit(cache=True, nogil=True)
def _count(
    policy_code: int, batch: Batch, gains: Gains, max_budget: int, workspace: Workspace
) -> Any:
    """The choice of a policy that counts drafts, or of one without a cost model."""
    wanted = gains.num_above if policy_code == THRESHOLD else gains.num_drafts
    budget = 0 if policy_code == OFF else min(wanted, max_budget)
    if budget >= gains.num_gains:
        return Choice(budget, gains.survival_sum, 0.0)
    order_all(workspace, gains.num_gains, batch.max_weight)
    return sum_first(workspace.ordered, budget)


@njit(cache=True, nogil=True)
def _flags_of(objective: Objective, gains: Gains, budget: int, max_budget: int) -> Any:
    """Reason flags of a decision."""
    table = objective.table
    flags = 0
    reachable = min(gains.num_drafts, max_budget)
    low = verify_ms_at(table, objective.num_rows)
    high = verify_ms_at(table, objective.num_rows + reachable)
    if table.has_model and reachable > 0 and abs(high - low) <= table.noise_ratio * low:
        flags |= FLAT
    if budget == max_budget and max_budget < gains.num_drafts:
        flags |= CAPPED
    if gains.num_repaired > 0:
        flags |= REPAIRED
    if gains.num_prior_rows > 0:
        flags |= PRIOR
    if table.has_model and objective.num_rows + budget >= len(table.verify_ms):
        flags |= EXTRAPOLATED
    return flags


@njit(cache=True, nogil=True)
def decide_step(
    policy: PolicyRule, step: StepInput, table: CostTable, prior: RunningMean, workspace: Workspace
) -> StepPlan:
    """Decide one step. Nothing raises, whatever the arrays hold.

    prior is updated from the step's valid confidences BEFORE it replaces missing ones, so that a
    fresh one gives the stateless answer. workspace is scratch made for at least these shapes.
    """
    cap = min(int(policy.parameter), NO_CAP) if policy.code == FIXED else NO_CAP
    batch = summarise_batch(step)
    threshold = policy.parameter if policy.code == THRESHOLD else np.inf
    gains = collect_gains(step, cap, threshold, prior, workspace)
    num_left_out = step.num_prefill_tokens if policy.code == THROUGHPUT else 0
    objective = _objective_of(table, batch, step.num_other_tokens, num_left_out)
    if policy.code <= GREEDY_CAUSAL and table.has_model:
        choice = _search(policy.code, objective, gains.num_gains, step.max_budget, workspace)
    else:
        choice = _count(policy.code, batch, gains, step.max_budget, workspace)
    admitted = choice.gain_sum
    if batch.is_weighted:
        admitted = sum_admitted_survival(step, cap, choice, workspace)
    whole_step = _objective_of(table, batch, step.num_other_tokens, 0)
    return StepPlan(
        choice.budget,
        cap,
        OK if table.has_model else NO_MODEL,
        _flags_of(objective, gains, choice.budget, step.max_budget),
        gains.num_repaired,
        gains.num_drafts,
        batch.num_sampling + admitted,
        price_at(whole_step, choice.budget) if table.has_model else 0.0,
    )
