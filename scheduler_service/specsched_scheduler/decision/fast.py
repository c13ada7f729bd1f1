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
from specsched_protocol.compiling import njit

from specsched_scheduler.decision._borrowing import borrowed
from specsched_scheduler.decision._equal_split import best_equal_split
from specsched_scheduler.decision._gains import (
    Batch,
    Gains,
    collect_gains,
    sum_admitted_survival,
    summarise_batch,
)
from specsched_scheduler.decision._order import Choice, first_maximum, order_all, sum_first
from specsched_scheduler.decision._price import (
    Objective,
    draft_ms_at,
    price_at,
    stair_end_at,
    verify_ms_at,
)
from specsched_scheduler.decision._search import search_budget
from specsched_scheduler.decision.codes import (
    NO_CAP,
    SPEED_POLICIES,
    DecisionFlags,
    Feature,
    ModelState,
    PolicyCode,
)
from specsched_scheduler.decision.cost import BOUND_MARGIN, FEW_REQUESTS, LEAD_ALONE, CostTable
from specsched_scheduler.decision.step import PolicyRule, StepInput, StepPlan
from specsched_scheduler.decision.workspace import RunningMean, Workspace

__all__ = ["StepPlan", "decide_step"]

# Numba inlines module integers; enum members it would look up.
GREEDY_CAUSAL = int(PolicyCode.GREEDY_CAUSAL)
FIXED = int(PolicyCode.FIXED)
THRESHOLD = int(PolicyCode.THRESHOLD)
OFF = int(PolicyCode.OFF)
SLO = int(PolicyCode.SLO)
RANKING, CONTEXT = int(Feature.RANKING), int(Feature.CONTEXT)
OK, NO_MODEL = int(ModelState.OK), int(ModelState.NO_MODEL)
FLAT, CAPPED = int(DecisionFlags.FLAT), int(DecisionFlags.CAPPED)
REPAIRED, PRIOR = int(DecisionFlags.REPAIRED), int(DecisionFlags.PRIOR)
EXTRAPOLATED = int(DecisionFlags.EXTRAPOLATED)
OUT_OF_BOUND = int(DecisionFlags.OUT_OF_BOUND)
MS_PER_SECOND = 1e3


@njit(cache=True, nogil=True)
def _objective_of(
    policy: PolicyRule, table: CostTable, batch: Batch, step: StepInput, num_left_out: int
) -> Any:
    """The ratio to maximise, with `num_left_out` prefill rows charged to nobody."""
    num_rows = step.num_other_tokens
    relative = batch.context_tokens - table.profiled_context * batch.num_sampling
    context_ms = 0.0 if policy.left_out & CONTEXT else table.context_ms_per_token * relative
    return Objective(
        table,
        batch.total_weight,
        batch.max_weight,
        num_rows,
        draft_ms_at(table, batch.num_sampling, step.next_draft_tokens),
        verify_ms_at(table, num_rows) - verify_ms_at(table, num_rows - num_left_out),
        context_ms,
    )


@njit(cache=True, nogil=True)
def _within(whole_step: Objective, reach: int, max_step_ms: float) -> Any:
    """StepView.within: the largest B up to which every step keeps the bound, -1 for none."""
    longest_ms = max_step_ms / (1.0 + BOUND_MARGIN * whole_step.table.noise_ratio)
    budget = -1
    while budget < reach:
        stair_end = min(stair_end_at(whole_step, budget + 1), reach)
        if price_at(whole_step, stair_end) > longest_ms:
            break
        budget = stair_end
    return budget


@njit(cache=True, nogil=True)
def _bounded_reach(policy: PolicyRule, whole_step: Objective, reach: int) -> Any:
    """(most drafts within the bounds of `slo`, flags); see policies.builtin.Slo."""
    if policy.code != SLO:
        return reach, 0
    bounded = _within(whole_step, reach, policy.max_step_ms)
    if bounded < 0:
        return 0, OUT_OF_BOUND
    if policy.min_tokens_per_second <= 0.0:
        return bounded, 0
    at_floor = _within(whole_step, bounded, MS_PER_SECOND / policy.min_tokens_per_second)
    return (bounded, OUT_OF_BOUND) if at_floor < 0 else (at_floor, 0)


@njit(cache=True, nogil=True)
def _search(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    policy_code: int,
    num_sampling: int,
    objective: Objective,
    num_gains: int,
    reach: int,
    workspace: Workspace,
) -> Any:
    """The choice of a policy that maximises the ratio."""
    is_wary = policy_code in SPEED_POLICIES and 0 < num_sampling <= FEW_REQUESTS
    if policy_code != GREEDY_CAUSAL and not is_wary:
        return search_budget(objective, num_gains, reach, workspace)
    order_all(workspace, num_gains, objective.max_weight)
    best = first_maximum(objective, workspace.ordered, reach, policy_code == GREEDY_CAUSAL)
    if not is_wary:
        return best
    everything = sum_first(workspace.ordered, reach)
    lead = 1.0 + LEAD_ALONE / num_sampling
    is_better = _ratio_of(objective, best) > _ratio_of(objective, everything) * lead
    return best if is_better else everything


@njit(cache=True, nogil=True)
def _ratio_of(objective: Objective, choice: Choice) -> Any:
    return (objective.total_weight + choice.gain_sum) / price_at(objective, choice.budget)


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
def _flags_of(
    objective: Objective, gains: Gains, num_drafts: int, budget: int, max_budget: int
) -> Any:
    """Reason flags of a decision. num_drafts: within the cap per request that it sets."""
    table = objective.table
    flags = 0
    reachable = min(num_drafts, max_budget)
    low = verify_ms_at(table, objective.num_rows)
    high = verify_ms_at(table, objective.num_rows + reachable)
    if table.has_model and reachable > 0 and abs(high - low) <= table.noise_ratio * low:
        flags |= FLAT
    if budget == max_budget and max_budget < num_drafts:
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
    step, table = borrowed(step), borrowed(table)
    prior, workspace = borrowed(prior), borrowed(workspace)
    cap = min(int(policy.parameter), NO_CAP) if policy.code == FIXED else NO_CAP
    batch = summarise_batch(step)
    threshold = policy.parameter if policy.code == THRESHOLD else np.inf
    gains = collect_gains(step, cap, threshold, policy.left_out, prior, workspace)
    leaves_out = policy.code in SPEED_POLICIES
    num_left_out = step.num_prefill_tokens if leaves_out else 0
    objective = _objective_of(policy, table, batch, step, num_left_out)
    whole_step = _objective_of(policy, table, batch, step, 0)
    bound_flags, num_drafts = 0, gains.num_drafts
    if (policy.code <= GREEDY_CAUSAL or policy.code == SLO) and table.has_model:
        reach = min(step.max_budget, gains.num_gains)
        reach, bound_flags = _bounded_reach(policy, whole_step, reach)
        if policy.left_out & RANKING:
            cap, choice = best_equal_split(objective, step, reach, workspace)
            num_drafts = choice.budget
        else:
            num_sampling, num_gains = batch.num_sampling, gains.num_gains
            choice = _search(policy.code, num_sampling, objective, num_gains, reach, workspace)
    else:
        choice = _count(policy.code, batch, gains, step.max_budget, workspace)
    admitted = choice.gain_sum
    if batch.is_weighted:
        admitted = sum_admitted_survival(step, cap, choice, workspace)
    return StepPlan(
        choice.budget,
        cap,
        OK if table.has_model else NO_MODEL,
        _flags_of(objective, gains, num_drafts, choice.budget, step.max_budget) | bound_flags,
        gains.num_repaired,
        gains.num_drafts,
        batch.num_sampling + admitted,
        price_at(whole_step, choice.budget) if table.has_model else 0.0,
    )
