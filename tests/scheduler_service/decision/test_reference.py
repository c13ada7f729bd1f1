"""The numpy definition against plain Python written from the same text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_scheduler.decision import decide
from specsched_scheduler.policies import build_policy

from tests.scheduler_service.decision import oracle
from tests.scheduler_service.decision.oracle import Step
from tests.scheduler_service.decision.strategies import steps

POLICIES = st.sampled_from(
    ["throughput", "ratio", "greedy-causal", "fixed(2)", "threshold(0.3)", "threshold(0)", "off"]
)


@settings(max_examples=300, deadline=None)
@given(steps(), POLICIES)
def test_decide_follows_the_definition(step: Step, text: str) -> None:
    policy = build_policy(text)
    parameter = next(iter(policy.spec.parameters.values()), 0.0)

    outcome = decide(step.inputs(), policy, step.cost().compile())

    cap = int(parameter) if policy.spec.name == "fixed" else None
    assert outcome.budget == oracle.budget(step, policy.spec.name, parameter)
    assert outcome.verify_lens.tolist() == oracle.verify_lens(step, outcome.budget, cap)
    assert outcome.verify_lens.sum() == outcome.budget
    assert outcome.num_repaired == oracle.num_repaired(step)
    assert outcome.model_state.name == ("OK" if len(step.verify) >= 3 else "NO_MODEL")
    admitted = oracle.ranked(step, cap)[: outcome.budget]
    expected = sum(row.samples for row in step.rows) + sum(draft[3] for draft in admitted)
    assert outcome.expected_tokens == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(steps())
def test_each_request_gets_a_prefix(step: Step) -> None:
    """Ranking admits a draft only after all drafts before it in the same request."""
    admitted: set[tuple[int, int]] = set()
    for _, position, row, _ in oracle.ranked(step):
        assert position == 0 or (row, position - 1) in admitted
        admitted.add((row, position))
    outcome = decide(step.inputs(), build_policy("throughput"), step.cost().compile())
    limits = [row.num_draft_tokens if row.samples else 0 for row in step.rows]
    assert all(
        got <= limit for got, limit in zip(outcome.verify_lens.tolist(), limits, strict=True)
    )
