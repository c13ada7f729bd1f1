"""A policy in the form that a planner takes."""

from __future__ import annotations

import numpy as np
from specsched_protocol.shm import plan_arrays

from specsched_scheduler.decision.codes import NO_CAP, PolicyCode
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner import PlannedStep, PolicySelection, PythonPolicy
from specsched_scheduler.policies import BuiltPolicy

__all__ = ["select_policy"]


def select_policy(policy: BuiltPolicy, *, policy_id: int) -> PolicySelection:
    """`policy` for a planner, which writes `policy_id` into every decision made by it."""
    code = PolicyCode(policy.rule.code)
    in_python = _in_python(policy) if code is PolicyCode.PYTHON else None
    numbers = policy.rule._asdict() | {"code": code}
    return PolicySelection(policy_id=policy_id, decide=in_python, **numbers)


def _in_python(policy: BuiltPolicy) -> PythonPolicy:
    def run(step: PlannedStep) -> StepPlan:
        inputs = _inputs(step)
        outcome = decide(inputs, policy, step.table, step.prior)
        num_drafts = int(inputs.num_draft_tokens[inputs.samples].sum(dtype=np.int64))
        return StepPlan(
            budget=outcome.budget,
            max_verify_len=NO_CAP if outcome.max_verify_len is None else outcome.max_verify_len,
            model_state=outcome.model_state,
            flags=outcome.flags,
            num_repaired=outcome.num_repaired,
            num_drafts=num_drafts,
            expected_tokens=outcome.expected_tokens,
            expected_ms=outcome.expected_ms or 0.0,
        )

    return run


def _inputs(step: PlannedStep) -> DecisionInputs:
    """A copy of what the planner read, so that a policy cannot change it."""
    fixed = step.request.fixed
    rows = slice(int(fixed[plan_arrays.NUM_REQUESTS]))
    return DecisionInputs(
        confidence=step.gathered.confidence[rows].astype(np.float64),
        num_draft_tokens=step.request.num_draft_tokens[rows].astype(np.int64),
        has_confidence=step.gathered.num_valid[rows] > 0,
        samples=step.request.samples[rows].astype(np.bool_),
        weight=step.request.weight[rows].astype(np.float64),
        context_tokens=step.request.context_tokens[rows].astype(np.int64),
        num_other_tokens=int(fixed[plan_arrays.NUM_OTHER_TOKENS]),
        num_prefill_tokens=int(fixed[plan_arrays.NUM_PREFILL_TOKENS]),
        max_budget=int(fixed[plan_arrays.MAX_BUDGET]),
    )
