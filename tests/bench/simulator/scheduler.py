"""The product's decision and learning, as the simulated executor meets them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from specsched_protocol.fairness import RecentTokens, fair_weights
from specsched_protocol.plan import StepReport
from specsched_scheduler.decision import DecisionFlags, Feature, PolicyCode, new_running_mean
from specsched_scheduler.decision.draft_length import (
    DraftLength,
    DraftLengthPlan,
    Survivals,
    next_draft_tokens,
)
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.row_flags import row_flags
from specsched_scheduler.decision.step import StepInput, StepPlan
from specsched_scheduler.decision.workspace import new_workspace
from specsched_scheduler.policies import build_policy

from tests.bench.simulator.machine import Machine
from tests.bench.simulator.workload import Workload

__all__ = ["Plan", "Scheduler"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """A decision and the length of the drafts made at the end of its step.

    num_other_tokens: T that it counted on. bounds_rows: whether rows beyond it take the place of
    drafts. fills_size: whether the budget is fitted to the captured size that runs the step.
    """

    step: StepPlan
    next_draft_tokens: int
    num_other_tokens: int
    bounds_rows: bool = False
    fills_size: bool = False


class Scheduler:
    """The product's decision with the state that its planner keeps."""

    def __init__(self, policy: str, workload: Workload, machine: Machine, seed: int) -> None:
        k = workload.recordings.max_draft_tokens
        self.rule = build_policy(policy).rule
        self.profile = machine.profiled(seed)
        self.table = self.profile.compile()
        self.recent = RecentTokens(workload.concurrency)
        self._survivals = Survivals(k)
        self.draft_length = DraftLength(k, self._survivals)
        self.draft_length.begin(self.table)
        is_fixed = self.rule.code in (PolicyCode.FIXED, PolicyCode.OFF)  # it asks for no learning
        self._learns = not is_fixed and not self.rule.left_out & Feature.DRAFT_LENGTH
        self._full = DraftLengthPlan(k, 0, k)
        self._prior = new_running_mean(k)
        self._workspace = new_workspace(workload.concurrency, k)

    def judged(self, confidence: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Float32 [R, k]: what drafts are ranked by, given what the drafter said; just that."""
        return confidence

    def plan(self, step_id: int, step: StepInput, slots: Ints, generations: Ints) -> Plan:
        """Decide a step, and the length of the drafts made at its end."""
        step = step._replace(confidence=self.judged(step.confidence))
        plan = self._full
        if self._learns:
            self._survivals.see(step.confidence[step.has_confidence > 0])
            plan = self.draft_length.plan_for(max(int(step.samples.sum()), 1))
        length = int(next_draft_tokens(self.rule, step_id, plan, step.confidence.shape[1]))
        if self.rule.fairness > 0.0:
            paces = self.recent.of(slots, generations)
            fair = fair_weights(step.weight, paces, self.rule.fairness)
            step = step._replace(weight=fair.astype(np.float32))
        step = step._replace(next_draft_tokens=length)
        decided = decide_step(self.rule, step, self.table, self._prior, self._workspace)
        flags = row_flags(self.rule)
        return Plan(
            decided,
            length,
            step.num_other_tokens,
            bounds_rows=bool(flags & DecisionFlags.ROWS_BOUND),
            fills_size=bool(flags & DecisionFlags.FILL_SIZE),
        )

    def learn(self, report: StepReport) -> None:
        """Read the report of a finished step."""
        self.recent.observe(report.slot_id, report.generation, report.num_accepted + 1)
        if self._learns:
            self.draft_length.observe(report, self.table)
