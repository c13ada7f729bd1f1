"""What a planner is configured with and what it tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from specsched_protocol.plan import StepDecision
from specsched_protocol.shm.plan_arrays import GatheredConfidences, RequestArrays

from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.step import PolicyRule, StepPlan
from specsched_scheduler.decision.workspace import RunningMean

__all__ = [
    "PlannedStep",
    "PlannerConfig",
    "PlannerCounters",
    "PolicyFailure",
    "PolicySelection",
    "PythonPolicy",
    "RecentDecision",
]


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """How the planner thread waits.

    spin_us: time it polls before it sleeps on the doorbell; keep it short where the executor needs
    the core. heartbeat_ms: longest sleep. core: CPU to pin the thread to, None for any.
    is_recording: keep whole steps for `Planner.drain_steps`.
    """

    spin_us: float = 20.0
    heartbeat_ms: int = 100
    core: int | None = None
    is_recording: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.spin_us <= 1e6:
            raise ValueError(f"spin_us is {self.spin_us}, accepted are 0 to 1000000")
        if not 1 <= self.heartbeat_ms <= 10_000:
            raise ValueError(f"heartbeat_ms is {self.heartbeat_ms}, accepted are 1 to 10000")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step for a policy in Python. Valid during the call only: the arrays are the planner's.

    request: RequestArrays, of which request.fixed[NUM_REQUESTS] rows count. gathered: confidences
    by the same rows, num_valid 0 where a row has none. prior: mean confidence by position, for the
    policy to update.
    """

    request: RequestArrays
    gathered: GatheredConfidences
    table: CostTable
    prior: RunningMean


PythonPolicy = Callable[[PlannedStep], StepPlan]


@dataclass(frozen=True, slots=True)
class PolicySelection:
    """The policy to plan by. `decide` is set if and only if `code` is PYTHON.

    policy_id is written into every decision, for the executor and for watchers. The numbers are
    those of PolicyRule.
    """

    policy_id: int
    code: PolicyCode
    parameter: float = 0.0
    decide: PythonPolicy | None = None
    max_step_ms: float = math.inf
    min_tokens_per_second: float = 0.0
    fairness: float = 0.0
    left_out: int = 0

    def __post_init__(self) -> None:
        if (self.code is PolicyCode.PYTHON) != (self.decide is not None):
            raise ValueError(f"policy code {self.code.name} with decide={self.decide!r}")

    @property
    def rule(self) -> PolicyRule:
        """What the compiled decision runs, in the types it is compiled for."""
        return PolicyRule(
            int(self.code),
            float(self.parameter),
            float(self.max_step_ms),
            float(self.min_tokens_per_second),
            float(self.fairness),
            int(self.left_out),
        )


@dataclass(frozen=True, slots=True)
class PlannerCounters:
    """Totals since the planner started; see specsched.v1.PlannerCounters.

    num_missing_confidences: requests decided from the prior alone. num_policy_errors: steps left to
    the executor's fallback because a policy in Python raised.
    """

    num_decisions: int
    num_missed_requests: int
    num_torn_reads: int
    num_invalid_requests: int
    num_repaired_confidences: int
    num_missing_confidences: int
    num_policy_errors: int
    num_reports: int
    num_lost_reports: int
    last_step_id: int
    plan_us_p50: float
    plan_us_p99: float


@dataclass(frozen=True, slots=True)
class PolicyFailure:
    """A policy in Python that raised. policy_id: of its PolicySelection. error: in one line."""

    policy_id: int
    error: str


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """A decision as it was written. index: 1, 2, ... in order; plan_us: from seeing the request."""

    index: int
    decision: StepDecision
    num_requests: int
    num_draft_tokens: int
    plan_us: float
