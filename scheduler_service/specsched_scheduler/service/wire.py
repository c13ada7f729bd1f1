"""Decisions of a planner as messages."""

from __future__ import annotations

from specsched_protocol.plan import NO_BUDGET_CAP, StepDecision
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.codes import DecisionFlags
from specsched_scheduler.decision.wire import flags_to_message

__all__ = ["decision_message"]


def decision_message(decision: StepDecision, policy: plan_pb2.PolicySpec) -> plan_pb2.Decision:
    """The message of a decision read from a lane."""
    message = plan_pb2.Decision(
        step_id=decision.step_id,
        source_step_id=decision.source_step_id,
        epoch=decision.epoch,
        budget=decision.budget,
        next_draft_tokens=decision.next_draft_tokens,
        expected_tokens=decision.expected_tokens,
        expected_ms=decision.expected_ms,
        policy=policy,
        model_state=plan_pb2.ModelState.ValueType(decision.model_state),
        flags=flags_to_message(DecisionFlags(decision.flags)),
        num_repaired_confidences=decision.num_repaired_confidences,
        fairness=decision.fairness,
    )
    if decision.max_verify_len != NO_BUDGET_CAP:
        message.max_verify_len = decision.max_verify_len
    return message
