"""Between protocol messages and what the planner and the decision take."""

from __future__ import annotations

from specsched_protocol.plan import NO_BUDGET_CAP, StepDecision
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import ContextCost, CostModel
from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.planner import PolicySelection

__all__ = [
    "answer_plan",
    "cost_model",
    "decision_message",
    "parse_policy",
    "policy_names",
    "policy_text",
    "select_policy",
]


def cost_model(message: plan_pb2.CostModel) -> CostModel:
    return CostModel(
        verify={entry.tokens: tuple(entry.ms) for entry in message.verify},
        capture_limit=message.capture_limit,
        draft={entry.requests: tuple(entry.ms) for entry in message.draft},
        context=ContextCost(
            message.context.ms_per_token, message.context.profiled_tokens_per_request
        ),
    )


_CODES = {
    "throughput": PolicyCode.THROUGHPUT,
    "ratio": PolicyCode.RATIO,
    "greedy-causal": PolicyCode.GREEDY_CAUSAL,
    "fixed": PolicyCode.FIXED,
    "threshold": PolicyCode.THRESHOLD,
    "off": PolicyCode.OFF,
}


def select_policy(spec: plan_pb2.PolicySpec, *, policy_id: int) -> PolicySelection:
    if spec.name not in _CODES:
        raise PolicyError(f"policy {spec.name!r}: accepted: {', '.join(_CODES)}")
    parameter = next(iter(spec.parameters.values()), 0.0)
    return PolicySelection(policy_id, _CODES[spec.name], parameter)


def parse_policy(text: str) -> plan_pb2.PolicySpec:
    name, _, rest = text.partition("(")
    spec = plan_pb2.PolicySpec(name=name)
    if rest:
        spec.parameters["p" if name == "threshold" else "k"] = float(rest.rstrip(")"))
    return spec


def policy_names() -> list[str]:
    return list(_CODES)


def policy_text(spec: plan_pb2.PolicySpec) -> str:
    return spec.name


def answer_plan(request: plan_pb2.PlanRequest) -> plan_pb2.PlanResponse:
    raise NotImplementedError


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
        flags=_flags(decision.flags),
        num_repaired_confidences=decision.num_repaired_confidences,
    )
    if decision.max_verify_len != NO_BUDGET_CAP:
        message.max_verify_len = decision.max_verify_len
    return message


def _flags(bits: int) -> list[plan_pb2.DecisionFlag.ValueType]:
    """Bit f - 1 stands for flag f."""
    return [flag for flag in plan_pb2.DecisionFlag.values() if flag and bits >> (flag - 1) & 1]
