"""Decides inside this process, with the code a scheduler service runs.

Of what a service learns it learns what needs no fit, the length of drafts and the pace of requests:
fits take tens of milliseconds, and here they would be the engine's.

For tests and for a machine on which one process is wanted. The only module of the executor that
imports the scheduler.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from specsched_protocol.fairness import RecentTokens, fair_weights
from specsched_protocol.plan import (
    ConfidenceRows,
    FallbackReason,
    PlanRequest,
    StepDecision,
    StepReport,
)
from specsched_protocol.v1 import plan_pb2, scheduler_pb2
from specsched_scheduler.decision import (
    NO_CAP,
    DecisionInputs,
    Feature,
    PolicyCode,
    decide,
    new_running_mean,
)
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED, calibrate
from specsched_scheduler.decision.draft_length import DraftLength, Survivals, next_draft_tokens
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.finished import finished_steps
from specsched_scheduler.decision.row_flags import row_flags
from specsched_scheduler.decision.step import StepPlan
from specsched_scheduler.decision.wire import DEFAULT_POLICY, cost_model_from_message
from specsched_scheduler.decision.workspace import new_workspace
from specsched_scheduler.learning.wire import calibration_from_message
from specsched_scheduler.policies import build_policy, check_effect

__all__ = ["DEFAULT_POLICY", "InProcessTransport", "check_policy"]

_EPOCH = 1
_MAX_DECISIONS = 8
"""Decisions kept for a step that has not read them."""


def check_policy(text: str, max_draft_tokens: int) -> None:
    """Raise PolicyError for a policy that InProcessTransport would refuse or could not follow."""
    check_effect(build_policy(text), max_draft_tokens, "this executor")


class InProcessTransport:
    """A PlanTransport that has decided by the time `publish` returns; every plan is on time.

    Raises PolicyError for an unknown policy, InvalidRequestError for a cost model that cannot be.
    """

    def __init__(
        self,
        policy: str,
        cost: plan_pb2.CostModel,
        *,
        max_requests: int,
        max_draft_tokens: int,
        calibration: scheduler_pb2.Calibration | None = None,
    ) -> None:
        self._policy = build_policy(policy)
        self._table = cost_model_from_message(cost, max_draft_tokens).compile()
        self._max_draft_tokens = max_draft_tokens
        is_calibrated = not self._policy.rule.left_out & Feature.CALIBRATION
        measured = (calibration if is_calibrated else None) or scheduler_pb2.Calibration()
        self._calibration = calibration_from_message(measured, max_draft_tokens).compile()
        self._prior = new_running_mean(max_draft_tokens)
        self._workspace = new_workspace(max_requests, max_draft_tokens)
        self._row_of_slot = np.full(max_requests, -1, dtype=np.int64)
        self._recent_tokens = RecentTokens(max_requests)
        self._survivals = Survivals(max_draft_tokens)
        self._draft_length = DraftLength(max_draft_tokens, self._survivals)
        self._draft_length.begin(self._table)
        self._decisions: dict[int, StepDecision] = {}
        self._warm_up()

    def publish(self, rows: ConfidenceRows | None, request: PlanRequest) -> None:
        """Decide at once."""
        confidence, has_confidence = self._gather(rows, request)
        of_class = np.where(request.is_greedy, GREEDY, SAMPLED)
        confidence = calibrate(self._calibration, of_class, confidence)
        self._survivals.see(confidence[has_confidence])
        next_draft_tokens = self._next_draft_tokens(request)
        plan = self._decide(
            DecisionInputs(
                confidence=confidence,
                num_draft_tokens=request.num_draft_tokens,
                has_confidence=has_confidence,
                samples=request.samples,
                weight=self._fair_weights(request),
                context_tokens=request.context_tokens,
                num_other_tokens=request.num_other_tokens,
                num_prefill_tokens=request.num_prefill_tokens,
                max_budget=request.max_budget,
                next_draft_tokens=next_draft_tokens,
            )
        )
        self._decisions[request.step_id] = self._decision(request, plan, next_draft_tokens)
        if len(self._decisions) > _MAX_DECISIONS:
            del self._decisions[next(iter(self._decisions))]

    def read(self, step_id: int) -> StepDecision | FallbackReason:
        """The decision, once; LATE for a step that nobody asked about."""
        return self._decisions.pop(step_id, FallbackReason.LATE)

    def report(self, report: StepReport) -> None:
        """Learn the pace of requests and the length of drafts."""
        self._recent_tokens.observe(report.slot_id, report.generation, report.num_accepted + 1)
        self._draft_length.observe(report, self._table)

    def close(self) -> None:
        """Nothing to release."""

    def _gather(
        self, rows: ConfidenceRows | None, request: PlanRequest
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Confidences [R, k] in the order of `request`, and which requests have any.

        A row counts under the generation it was made for only, and only up to its drafts.
        """
        num_requests = len(request.slot_id)
        confidence = np.full((num_requests, self._max_draft_tokens), np.nan, dtype=np.float32)
        if rows is None or not len(rows.slot_id):
            return confidence, np.zeros(num_requests, dtype=np.bool_)
        self._row_of_slot.fill(-1)
        self._row_of_slot[rows.slot_id] = np.arange(len(rows.slot_id))
        row = self._row_of_slot[request.slot_id]
        has_confidence = (row >= 0) & (rows.generation[row] == request.generation)
        has_confidence &= rows.num_draft_tokens[row] > 0
        found = row[has_confidence]
        is_present = np.arange(self._max_draft_tokens) < rows.num_draft_tokens[found, None]
        confidence[has_confidence] = np.where(is_present, rows.confidence[found], np.nan)
        return confidence, has_confidence

    def _decide(self, inputs: DecisionInputs) -> StepPlan:
        if self._policy.rule.code != PolicyCode.PYTHON:
            step, rule = inputs.as_step(), self._policy.rule
            plan: StepPlan = decide_step(rule, step, self._table, self._prior, self._workspace)
            return plan
        outcome = decide(inputs, self._policy, self._table, self._prior)
        return StepPlan(
            budget=outcome.budget,
            max_verify_len=NO_CAP if outcome.max_verify_len is None else outcome.max_verify_len,
            model_state=int(outcome.model_state),
            flags=int(outcome.flags),
            num_repaired=outcome.num_repaired,
            num_drafts=int(inputs.num_draft_tokens.sum()),
            expected_tokens=outcome.expected_tokens,
            expected_ms=outcome.expected_ms or 0.0,
        )

    def _next_draft_tokens(self, request: PlanRequest) -> int:
        plan = self._draft_length.plan_for(max(int(request.samples.sum()), 1))
        rule = self._policy.rule
        return int(next_draft_tokens(rule, request.step_id, plan, self._max_draft_tokens))

    def _fair_weights(self, request: PlanRequest) -> npt.NDArray[np.float32]:
        alpha = self._policy.rule.fairness
        if alpha == 0.0:
            return request.weight
        paces = self._recent_tokens.of(request.slot_id, request.generation)
        return fair_weights(request.weight, paces, alpha).astype(np.float32)

    def _decision(
        self, request: PlanRequest, plan: StepPlan, next_draft_tokens: int
    ) -> StepDecision:
        return StepDecision(
            step_id=request.step_id,
            source_step_id=request.source_step_id,
            epoch=_EPOCH,
            budget=plan.budget,
            max_verify_len=plan.max_verify_len,
            next_draft_tokens=next_draft_tokens,
            expected_tokens=plan.expected_tokens,
            expected_ms=plan.expected_ms,
            policy_id=self._policy.rule.code,
            model_state=plan.model_state,
            flags=plan.flags | row_flags(self._policy.rule),
            num_repaired_confidences=plan.num_repaired,
            decided_ns=time.monotonic_ns(),
            fairness=self._policy.rule.fairness,
        )

    def _warm_up(self) -> None:
        """Compile before the first step, not in it."""
        nobody = np.zeros(0, dtype=np.uint32)
        request = PlanRequest(
            step_id=0,
            source_step_id=-2,
            num_other_tokens=0,
            num_prefill_tokens=0,
            max_budget=0,
            slot_id=nobody,
            generation=nobody,
            num_draft_tokens=nobody,
            samples=nobody.astype(np.bool_),
            weight=nobody.astype(np.float32),
            context_tokens=nobody,
            is_greedy=nobody.astype(np.bool_),
        )
        self.publish(None, request)
        self._draft_length.follow(finished_steps([]), self._table)
        self._decisions.clear()
