"""The collected cases: faults reported against other schedulers, with values checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.wire import cost_model_from_message, inputs_from_message
from specsched_scheduler.decision.workspace import new_running_mean, new_workspace
from specsched_scheduler.plan_document import read_plan_document
from specsched_scheduler.plan_file import plan_text
from specsched_scheduler.policies import build_policy

CASES = json.loads((Path(__file__).parents[1] / "cases" / "budget.json").read_text("utf-8"))
each_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


@each_case
def test_plan_file(case: dict[str, Any]) -> None:
    answer = json.loads(plan_text(json.dumps(case["request"])))
    assert {key: answer[key] for key in case["expect"]} == case["expect"]


@each_case
def test_compiled(case: dict[str, Any]) -> None:
    request = read_plan_document(json.dumps(case["request"])).entries[0].request
    inputs, k = inputs_from_message(request), request.max_draft_tokens
    plan = decide_step(
        build_policy(case["request"].get("policy", "throughput")).rule,
        inputs.as_step(),
        cost_model_from_message(request.cost, k).compile(),
        new_running_mean(k),
        new_workspace(inputs.num_requests, k),
    )
    assert plan.budget == case["expect"]["budget"]
    assert plan.num_repaired == case["expect"]["repaired"]


def test_all_at_once() -> None:
    answers = json.loads(plan_text(json.dumps(CASES)))
    assert [answer["name"] for answer in answers] == [case["name"] for case in CASES]
    assert [answer["budget"] for answer in answers] == [case["expect"]["budget"] for case in CASES]
