"""Steps that a policy in Python decides, and what becomes of one that fails."""

from __future__ import annotations

import structlog

from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.planner.records import PlannedStep, PolicyFailure, PythonPolicy

__all__ = ["FailureLog", "decide_in_python"]

_log = structlog.get_logger(__name__)


def decide_in_python(decide: PythonPolicy, step: PlannedStep) -> StepPlan:
    """The plan of `decide`, in the types that `publish_plan` is compiled for."""
    plan = decide(step)
    return StepPlan(
        budget=int(plan.budget),
        max_verify_len=int(plan.max_verify_len),
        model_state=int(plan.model_state),
        flags=int(plan.flags),
        num_repaired=int(plan.num_repaired),
        num_drafts=int(plan.num_drafts),
        expected_tokens=float(plan.expected_tokens),
        expected_ms=float(plan.expected_ms),
    )


class FailureLog:
    """Keeps the newest failure of a policy; None: none has failed."""

    def __init__(self) -> None:
        self.newest: PolicyFailure | None = None

    def note(self, policy_id: int, step_id: int, error: Exception) -> None:
        """Log it with its traceback once for each policy."""
        if self.newest is None or self.newest.policy_id != policy_id:
            _log.error("policy failed", step_id=step_id, exc_info=error)
        self.newest = PolicyFailure(policy_id, " ".join(str(error).split()))
