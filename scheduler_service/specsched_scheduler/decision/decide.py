"""One decision from Python: any policy, plain numpy, no compilation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.codes import DecisionFlags, ModelState
from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.inputs import DecisionInputs, DecisionOutcome
from specsched_scheduler.decision.reference import StepView, verify_ms
from specsched_scheduler.decision.workspace import RunningMean
from specsched_scheduler.policies.base import PolicyChoice
from specsched_scheduler.policies.registry import BuiltPolicy

__all__ = ["decide"]


def decide(
    inputs: DecisionInputs,
    policy: BuiltPolicy,
    table: CostTable,
    prior: RunningMean | None = None,
) -> DecisionOutcome:
    """Decide one step. For built-in policies the budget equals that of `fast.decide_step`.

    prior: the running mean of earlier steps, updated in place; None: the step stands alone. Raises
    PolicyFailedError where the policy raises or its answer makes no sense.
    """
    step = StepView(inputs, table, prior, policy.rule.left_out)
    choice = policy.decide(step)
    limit = min(step.num_drafts(choice.max_verify_len), inputs.max_budget)
    budget = min(choice.budget, limit)
    admitted = step.ranked(choice.max_verify_len)[:budget]
    survival = step.survival.reshape(-1)[admitted]
    return DecisionOutcome(
        budget=budget,
        verify_lens=_count_per_row(admitted, inputs),
        max_verify_len=choice.max_verify_len,
        model_state=ModelState.OK if step.has_model else ModelState.NO_MODEL,
        flags=_flags(step, budget, choice),
        num_repaired=step.repaired.num_repaired,
        expected_tokens=step.num_sampling + float(survival.sum()),
        expected_ms=float(step.price(np.array([budget]))[0]) if step.has_model else None,
        policy=str(policy),
    )


def _count_per_row(
    admitted: npt.NDArray[np.int64], inputs: DecisionInputs
) -> npt.NDArray[np.int64]:
    rows = admitted // max(inputs.max_draft_tokens, 1)
    return np.bincount(rows, minlength=inputs.num_requests).astype(np.int64)


def _flags(step: StepView, budget: int, choice: PolicyChoice) -> DecisionFlags:
    flags = DecisionFlags.OUT_OF_BOUND if choice.is_out_of_bound else DecisionFlags.NONE
    num_drafts, cap = step.num_drafts(choice.max_verify_len), step.inputs.max_budget
    num_rows = step.inputs.num_other_tokens
    reachable = min(num_drafts, cap)
    low, high = verify_ms(step.table, np.array([num_rows, num_rows + reachable])).tolist()
    if step.has_model and reachable > 0 and abs(high - low) <= step.table.noise_ratio * low:
        flags |= DecisionFlags.FLAT
    if budget == cap < num_drafts:
        flags |= DecisionFlags.CAPPED
    if step.repaired.num_repaired:
        flags |= DecisionFlags.REPAIRED
    if step.repaired.num_prior_rows:
        flags |= DecisionFlags.PRIOR
    if step.has_model and num_rows + budget >= len(step.table.verify_ms):
        flags |= DecisionFlags.EXTRAPOLATED
    return flags
