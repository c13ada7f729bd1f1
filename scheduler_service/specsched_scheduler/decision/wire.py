"""Between the protocol's plan messages and the decision's own types.

Every function raises InvalidRequestError or PolicyError (both DecisionError, a ValueError) naming
the field, its value and what is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.codes import NO_CAP, DecisionFlags
from specsched_scheduler.decision.cost import ContextCost, CostModel
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.errors import InvalidRequestError
from specsched_scheduler.decision.inputs import DecisionInputs, DecisionOutcome
from specsched_scheduler.policies.registry import BuiltPolicy, build_policy
from specsched_scheduler.policies.spec import PolicySpec

__all__ = [
    "DEFAULT_POLICY",
    "answer_plan",
    "cost_model_from_message",
    "decide_message",
    "flags_to_message",
    "inputs_from_message",
    "policy_from_message",
    "policy_to_message",
]

DEFAULT_POLICY = "throughput"
MAX_DRAFT_TOKENS = 1024
"""Largest k accepted from outside; drafts are a handful of tokens."""
MAX_DRAFTS = 1 << 22
"""Requests times k: a short message could name more than there is memory for."""


def answer_plan(request: plan_pb2.PlanRequest) -> plan_pb2.PlanResponse:
    """The stateless decision for one step described in full: the unary `Plan` call."""
    outcome, policy = decide_message(request)
    decision = plan_pb2.Decision(
        budget=outcome.budget,
        max_verify_len=outcome.max_verify_len,
        expected_tokens=outcome.expected_tokens,
        expected_ms=outcome.expected_ms or 0.0,
        policy=policy_to_message(policy),
        model_state=plan_pb2.ModelState.ValueType(int(outcome.model_state)),
        flags=flags_to_message(outcome.flags),
        num_repaired_confidences=outcome.num_repaired,
    )
    return plan_pb2.PlanResponse(decision=decision, verify_lens=outcome.verify_lens.tolist())


def decide_message(request: plan_pb2.PlanRequest) -> tuple[DecisionOutcome, BuiltPolicy]:
    """Decide a plan request; also tells the policy that did."""
    inputs = inputs_from_message(request)
    if not request.HasField("cost"):
        raise InvalidRequestError("cost", None, "is required")
    cost = cost_model_from_message(request.cost, request.max_draft_tokens)
    policy = policy_from_message(request.policy if request.HasField("policy") else None)
    return decide(inputs, policy, cost.compile()), policy


# ===================== Policy =====================


def policy_from_message(message: plan_pb2.PolicySpec | None) -> BuiltPolicy:
    """Build the policy of a message; the default one for None."""
    if message is None:
        return build_policy(DEFAULT_POLICY)
    return build_policy(PolicySpec.from_message(message))


def policy_to_message(policy: BuiltPolicy) -> plan_pb2.PolicySpec:
    """The policy's name with all its parameters."""
    return policy.spec.to_message()


def flags_to_message(flags: DecisionFlags) -> list[plan_pb2.DecisionFlag.ValueType]:
    """One enum value per bit."""
    values = plan_pb2.DecisionFlag.values()
    return [value for value in values if value and int(flags) >> (value - 1) & 1]


# ===================== Cost =====================


def cost_model_from_message(message: plan_pb2.CostModel, max_draft_tokens: int) -> CostModel:
    """The cost profile. A draft cost without a length is that of max_draft_tokens."""
    drafts: dict[int, list[_Entry]] = {max_draft_tokens: []}
    for index, entry in enumerate(message.draft):
        length = entry.draft_tokens if entry.HasField("draft_tokens") else max_draft_tokens
        if length > 0:  # no draft costs nothing
            field = f"cost.draft[{index}].requests"
            drafts.setdefault(length, []).append((field, entry.requests, entry.ms))
    verify = [
        (f"cost.verify[{index}].tokens", entry.tokens, entry.ms)
        for index, entry in enumerate(message.verify)
    ]
    context = ContextCost()
    if message.HasField("context"):
        context = ContextCost(
            message.context.ms_per_token, message.context.profiled_tokens_per_request
        )
    return CostModel(
        verify=_by_size(verify),
        capture_limit=message.capture_limit,
        draft=_by_size(drafts[max_draft_tokens]),
        context=context,
        short_drafts={
            length: _by_size(entries)
            for length, entries in drafts.items()
            if length < max_draft_tokens
        },
    )


_Entry = tuple[str, int, Iterable[float]]
"""Path of a size's field, the size, its samples."""


def _by_size(entries: Iterable[_Entry]) -> dict[int, tuple[float, ...]]:
    samples: dict[int, tuple[float, ...]] = {}
    for field, size, values in entries:
        if size in samples:
            raise InvalidRequestError(field, size, "each size may be listed once")
        samples[size] = tuple(values)
    return samples


# ===================== Step =====================


def inputs_from_message(request: plan_pb2.PlanRequest) -> DecisionInputs:
    """The step of a plan request, unset fields at their defaults."""
    k = request.max_draft_tokens
    if not 1 <= k <= MAX_DRAFT_TOKENS:
        raise InvalidRequestError("max_draft_tokens", k, f"must be in 1..{MAX_DRAFT_TOKENS}")
    states = list(request.requests)
    if len(states) * k > MAX_DRAFTS:
        accepted = f"must be at most {MAX_DRAFTS // k} where max_draft_tokens is {k}"
        raise InvalidRequestError("number of requests", len(states), accepted)
    confidence = np.full((len(states), k), np.nan)
    for row, state in enumerate(states):
        _check_length(row, state, k)
        confidence[row, : len(state.confidence)] = state.confidence
    return DecisionInputs(
        confidence=confidence,
        num_draft_tokens=np.array([_num_drafts(state, k) for state in states], dtype=np.int64),
        has_confidence=np.array([len(state.confidence) > 0 for state in states], dtype=np.bool_),
        samples=np.array([_samples(state) for state in states], dtype=np.bool_),
        weight=np.array([_weight(state) for state in states], dtype=np.float64),
        context_tokens=np.array([state.context_tokens for state in states], dtype=np.uint64),
        num_other_tokens=request.num_other_tokens,
        num_prefill_tokens=request.num_prefill_tokens,
        max_budget=request.max_budget if request.HasField("max_budget") else NO_CAP,
    )


def _check_length(row: int, state: plan_pb2.RequestState, max_draft_tokens: int) -> None:
    """k values, or at least one for every draft present; none at all is no confidence yet."""
    length = len(state.confidence)
    least = min(_num_drafts(state, max_draft_tokens), max_draft_tokens) if _samples(state) else 0
    if length > max_draft_tokens or 0 < length < least:
        accepted = f"must hold {least}..{max_draft_tokens} values, or none"
        raise InvalidRequestError(f"requests[{row}].confidence", list(state.confidence), accepted)


def _num_drafts(state: plan_pb2.RequestState, max_draft_tokens: int) -> int:
    return state.num_draft_tokens if state.HasField("num_draft_tokens") else max_draft_tokens


def _samples(state: plan_pb2.RequestState) -> bool:
    return state.samples if state.HasField("samples") else True


def _weight(state: plan_pb2.RequestState) -> float:
    return state.weight if state.HasField("weight") else 1.0
