"""Plan requests as JSON and as messages: what is refused and how the error reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.decision import DecisionError, InvalidRequestError
from specsched_scheduler.decision.wire import answer_plan
from specsched_scheduler.plan_document import read_plan_document
from specsched_scheduler.plan_file import plan_text

from tests.scheduler_service.decision.documents import DROP, GOOD, changed


def test_the_good_one_is_good() -> None:
    answer = json.loads(plan_text(json.dumps(GOOD)))
    assert answer["budget"] == 6
    assert answer["verify_lens"] == [3, 3]
    assert answer["repaired"] == 1
    assert answer["flags"] == ["flat", "repaired", "prior"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("num_prefill_tokens", 5, "num_prefill_tokens = 5: must not exceed num_other_tokens = 4"),
        ("num_prefill_tokens", -1, "num_prefill_tokens = -1"),
        ("num_other_tokens", 1.5, "num_other_tokens = 1.5"),
        ("num_other_tokens", True, "num_other_tokens = true"),
        ("num_other_tokens", "4", 'num_other_tokens = "4"'),
        ("num_other_tokens", DROP, "num_other_tokens: Field required"),
        ("max_draft_tokens", 0, "max_draft_tokens = 0"),
        ("max_draft_tokens", None, "max_draft_tokens = null"),
        ("max_draft_tokens", 2, "requests[0].confidence = "),
        ("max_budget", -1, "max_budget = -1"),
        ("max_budget", 1 << 32, "max_budget = 4294967296"),
        ("policy", "best", "policy 'best' is unknown; known: throughput, ratio"),
        ("policy", "fixed", "policy fixed needs its parameter k"),
        ("policy", 7, "policy = 7"),
        ("requests", {}, "requests = {}"),
        ("requests", DROP, "requests: Field required"),
        ("requests.0", [], "requests[0] = []"),
        (
            "requests.0.confidence",
            [0.9, 0.9],
            "requests[0].confidence = [0.9, 0.9]: must hold 3..3",
        ),
        ("requests.0.confidence", [0.9] * 4, "requests[0].confidence = [0.9, 0.9, 0.9, 0.9]"),
        ("requests.0.confidence", 0.9, "requests[0].confidence = 0.9"),
        ("requests.0.confidence.1", "high", 'requests[0].confidence[1] = "high"'),
        ("requests.0.confidence.1", True, "requests[0].confidence[1] = true"),
        ("requests.0.num_draft_tokens", 4, "requests[0].num_draft_tokens = 4: must be in 0..3"),
        ("requests.0.num_draft_tokens", -1, "requests[0].num_draft_tokens = -1"),
        ("requests.0.samples", 1, "requests[0].samples = 1"),
        ("requests.1.weight", -1, "requests[1].weight = -1.0: must be finite and >= 0"),
        ("requests.1.weight", float("inf"), "requests[1].weight = inf"),
        ("requests.1.weight", float("nan"), "requests[1].weight = nan"),
        ("requests.1.weight", "2", 'requests[1].weight = "2"'),
        ("requests.1.context_tokens", -1, "requests[1].context_tokens = -1"),
        ("requests.1.speed", 1, "requests[1].speed = 1: Extra inputs are not permitted"),
        ("cost", DROP, "cost: Field required"),
        ("cost.verify", DROP, "cost.verify: Field required"),
        ("cost.verify.0.ms", [], "cost.verify[tokens=4].ms = []: needs at least one sample"),
        ("cost.verify.0.ms", 5.0, "cost.verify[0].ms = 5.0"),
        ("cost.verify.0.ms", [None], "cost.verify[0].ms[0] = null"),
        ("cost.verify.0.ms", [float("nan")], "cost.verify[tokens=4].ms = nan"),
        ("cost.verify.0.ms", [-5.0], "cost.verify[tokens=4].ms = -5.0"),
        ("cost.verify.0.tokens", 0, "cost.verify[].tokens = 0"),
        ("cost.verify.1.tokens", 4, "cost.verify[1].tokens = 4: each size may be listed once"),
        ("cost.draft.0.ms", [], "cost.draft[requests=8].ms = []"),
        ("cost.draft.0.requests", 2.5, "cost.draft[0].requests = 2.5"),
        ("cost.capture_limit", -1, "cost.capture_limit = -1"),
        ("cost.capture_limit", DROP, "cost.capture_limit: Field required"),
        ("cost.context.ms_per_token", -1.0, "cost.context.ms_per_token = -1.0"),
        ("cost.context.profiled_tokens_per_request", DROP, "cost.context.profiled_tokens_per"),
        ("unknown", 1, "unknown = 1: Extra inputs are not permitted"),
    ],
)
def test_errors_name_the_field_and_the_value(path: str, value: Any, named: str) -> None:
    with pytest.raises(DecisionError) as error:
        plan_text(json.dumps(changed(path, value)))
    assert str(error.value).startswith(named)


@pytest.mark.parametrize("value", [0.5, 1.5, -0.5, float("inf")])
def test_impossible_confidences_are_repaired_not_refused(value: float) -> None:
    answer = json.loads(plan_text(json.dumps(changed("requests.0.confidence.0", value))))
    assert answer["repaired"] == (1 if value == 0.5 else 2)


def test_a_request_inside_a_chunk_contributes_nothing() -> None:
    """Whatever its other fields say: no drafts, no bonus, no context."""
    document = changed("requests.0.samples", False)
    document["requests"][0] |= {"weight": 100.0, "context_tokens": 1 << 40, "confidence": [0.9]}
    answer = json.loads(plan_text(json.dumps(document)))
    assert answer["verify_lens"] == [0, 3]
    assert answer["repaired"] == 0
    assert answer["expected_tokens"] == 1 + 0.5 + 0.25 + 0.125


@pytest.mark.parametrize("text", ["", "{", "[1, 2", '{"a": }'])
def test_not_json(text: str) -> None:
    with pytest.raises(DecisionError, match="not JSON"):
        plan_text(text)


@pytest.mark.parametrize("text", ["3", '"throughput"', "null"])
def test_not_a_request(text: str) -> None:
    with pytest.raises(DecisionError, match="request"):
        plan_text(text)


def test_errors_in_a_list_name_the_entry() -> None:
    bad = [GOOD, changed("requests.1.weight", -1)]
    with pytest.raises(DecisionError, match=r"^\[1\]: requests\[1\]\.weight = -1"):
        plan_text(json.dumps(bad))
    with pytest.raises(DecisionError, match=r"^\[0\]\.requests\[0\] = 3"):
        plan_text(json.dumps([changed("requests.0", 3)]))


def test_a_list_is_answered_by_a_list() -> None:
    assert json.loads(plan_text("[]")) == []
    assert len(json.loads(plan_text(json.dumps([GOOD])))) == 1


def test_a_case_is_answered_with_its_name() -> None:
    answer = json.loads(plan_text(json.dumps({"name": "mine", "why": "", "request": GOOD})))
    assert answer["name"] == "mine"


def test_no_request_at_all() -> None:
    answer = json.loads(plan_text(json.dumps(changed("requests", []))))
    assert (answer["budget"], answer["verify_lens"], answer["expected_tokens"]) == (0, [], 0.0)


# ===================== Messages =====================


def message(**changes: Any) -> plan_pb2.PlanRequest:
    request = read_plan_document(json.dumps(GOOD)).entries[0].request
    for field, value in changes.items():
        setattr(request, field, value)
    return request


def test_answer_as_a_message() -> None:
    response = answer_plan(message())
    decision = response.decision
    assert list(response.verify_lens) == [3, 3]
    assert (decision.budget, decision.model_state) == (6, plan_pb2.MODEL_STATE_OK)
    assert decision.policy == plan_pb2.PolicySpec(name="throughput")
    assert list(decision.flags) == [
        plan_pb2.DECISION_FLAG_FLAT,
        plan_pb2.DECISION_FLAG_REPAIRED,
        plan_pb2.DECISION_FLAG_PRIOR,
    ]
    assert not decision.HasField("max_verify_len")


def test_policy_travels_in_the_message() -> None:
    request = message()
    request.policy.CopyFrom(plan_pb2.PolicySpec(name="fixed", parameters={"k": 1}))
    response = answer_plan(request)
    assert (response.decision.budget, response.decision.max_verify_len) == (2, 1)
    assert list(response.verify_lens) == [1, 1]
    assert response.decision.policy == request.policy


def test_cost_must_be_there() -> None:
    request = message()
    request.ClearField("cost")
    with pytest.raises(InvalidRequestError, match=r"^cost = None: is required"):
        answer_plan(request)


def test_a_step_beyond_all_memory_is_refused() -> None:
    request = plan_pb2.PlanRequest(max_draft_tokens=1024)
    request.requests.extend([plan_pb2.RequestState()] * 5000)
    with pytest.raises(
        InvalidRequestError, match="number of requests = 5000: must be at most 4096"
    ):
        answer_plan(request)


def test_only_full_drafts_are_priced() -> None:
    """A cost for another draft length is not that of this step's drafts."""
    request = message()
    request.cost.draft.add(requests=8, ms=[100.0], draft_tokens=1)
    assert answer_plan(request).decision == answer_plan(message()).decision
