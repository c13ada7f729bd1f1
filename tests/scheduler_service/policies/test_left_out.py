"""Each part that can be left out changes a decision; what is not one is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from specsched_scheduler.decision import (
    NO_CAP,
    ContextCost,
    CostModel,
    CostTable,
    DecisionInputs,
    DecisionOutcome,
    Feature,
    decide,
    new_running_mean,
)
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.workspace import new_workspace
from specsched_scheduler.policies import PolicyError, build_policy

from tests.scheduler_service.policies.steps import step

ROOMY = CostModel({4: [10.0], 8: [10.5], 12: [16.0], 16: [22.0]}, 16).compile()


def decide_both(text: str, inputs: DecisionInputs, table: CostTable) -> DecisionOutcome:
    """The decision, compiled and plain, which are the same."""
    policy, k = build_policy(text), inputs.max_draft_tokens
    workspace = new_workspace(inputs.num_requests, k)
    plan = decide_step(policy.rule, inputs.as_step(), table, new_running_mean(k), workspace)
    outcome = decide(inputs, policy, table)
    cap = NO_CAP if outcome.max_verify_len is None else outcome.max_verify_len
    assert (plan.budget, plan.max_verify_len, plan.flags) == (outcome.budget, cap, outcome.flags)
    assert plan.expected_tokens == pytest.approx(outcome.expected_tokens, rel=1e-12)
    assert plan.expected_ms == pytest.approx(outcome.expected_ms or 0.0, rel=1e-12)
    return outcome


@pytest.mark.parametrize("text", ["throughput({})", "ratio({})", "slo(step_ms=100, {})"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_without_ranking_all_requests_have_the_cap_of_the_highest_ratio(text, is_weighted):
    weight = np.array([1.0, 2.0, 0.5, 1.0]) if is_weighted else np.ones(4)
    inputs = step(num_draft_tokens=np.array([3, 2, 3, 0]), weight=weight)
    outcome = decide_both(text.format("ranking=0"), inputs, ROOMY)
    survival = np.cumprod(inputs.confidence, axis=1)
    is_there = np.arange(3) < inputs.num_draft_tokens[:, None]
    ratios = []
    for cap in range(4):
        within = is_there & (np.arange(3) < cap)
        gain = (weight[:, None] * survival)[within].sum()
        ratios.append((weight.sum() + gain) / ROOMY.verify_ms[4 + within.sum()])
    assert outcome.max_verify_len == np.argmax(ratios) > 0
    caps = np.minimum(inputs.num_draft_tokens, outcome.max_verify_len)
    assert outcome.verify_lens.tolist() == caps.tolist()
    ranked = decide_both(text.format("ranking=1"), inputs, ROOMY)
    assert ranked.max_verify_len is None
    assert ranked.verify_lens.tolist() != outcome.verify_lens.tolist()


def test_without_ranking_a_bound_and_the_executors_cap_are_kept():
    slow = decide_both("slo(step_ms=10.9, ranking=0)", step(), ROOMY)
    assert (slow.max_verify_len, slow.budget) == (1, 4)
    assert slow.expected_ms == 10.5
    capped = decide_both("throughput(ranking=0)", step(max_budget=3), ROOMY)
    assert capped.budget == 0


def test_without_the_context_a_long_one_changes_nothing():
    """A step that is dear by its context makes every draft look cheap."""
    model = CostModel({4: [10.0], 8: [16.0], 16: [25.0]}, 16, context=ContextCost(1e-3, 0.0))
    inputs, table = step(context_tokens=np.full(4, 100_000)), model.compile()
    told = decide_both("throughput", inputs, table)
    left_out = decide_both("throughput(context=0)", inputs, table)
    assert told.budget > left_out.budget
    assert left_out.budget == decide_both("throughput", step(), table).budget
    assert left_out.expected_ms == decide_both("throughput", step(), table).expected_ms


def test_without_the_prior_newcomers_are_certain():
    inputs = step(has_confidence=np.array([True, True, False, True]))
    told = decide_both("throughput", inputs, ROOMY)
    left_out = decide_both("throughput(prior=0)", inputs, ROOMY)
    certain = inputs.confidence.copy()
    certain[2] = 1.0
    as_certain = decide_both("throughput", step(confidence=certain), ROOMY)
    assert left_out.verify_lens.tolist() == as_certain.verify_lens.tolist()
    assert left_out.expected_tokens == as_certain.expected_tokens
    assert left_out.verify_lens[2] == 3 > told.verify_lens[2]


@pytest.mark.parametrize("feature", list(Feature))
def test_each_feature_has_a_switch_that_is_on(feature):
    name = feature.name.lower()
    assert build_policy("throughput").rule.left_out == 0
    left_out = build_policy(f"throughput({name}=0)")
    assert (left_out.rule.left_out, str(left_out)) == (feature, f"throughput({name}=0)")
    assert str(build_policy(f"throughput({name}=1)")) == "throughput"
    slo = build_policy(f"slo(step_ms=9, {name}=0)")
    assert slo.rule._replace(left_out=0) == build_policy("slo(9)").rule
    assert slo.rule.left_out == feature


def test_several_parts_are_left_out_at_once():
    rule = build_policy("throughput(fairness=1, ranking=0, fill=0)").rule
    assert rule.left_out == Feature.RANKING | Feature.FILL
    assert rule.fairness == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("throughput(context=2)", "context = 2 must be an integer in 0..1"),
        ("throughput(fill=0.5)", "fill = 0.5 must be an integer in 0..1"),
        ("throughput(speed=0)", "unknown parameter 'speed'; accepted: fairness, ranking, context"),
        ("fixed(3, context=0)", "unknown parameter 'context'; accepted: k"),
    ],
)
def test_what_cannot_be_left_out_is_refused(text, message):
    with pytest.raises(PolicyError, match=message):
        build_policy(text)


def test_a_step_that_nothing_prices_is_verified_whole_without_ranking_too():
    outcome = decide_both("throughput(ranking=0)", step(), CostModel({4: [10.0]}, 4).compile())
    assert (outcome.budget, outcome.max_verify_len) == (12, None)


def test_drafts_that_cannot_survive_take_part_in_no_cap():
    inputs = dataclasses.replace(step(), confidence=np.tile([0.9, 0.0, 0.9], (4, 1)))
    outcome = decide_both("throughput(ranking=0)", inputs, ROOMY)
    assert (outcome.max_verify_len, outcome.budget) == (1, 4)
