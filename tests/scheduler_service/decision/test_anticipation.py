"""A budget from old confidences, where it is known how little these say of the next draft."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_scheduler.decision.anticipation import anticipate
from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionInputs, DecisionOutcome
from specsched_scheduler.decision.workspace import RunningMean, new_running_mean
from specsched_scheduler.policies.registry import build_policy

K = 7
SURVIVAL = np.array([0.62, 0.4, 0.26, 0.18, 0.12, 0.08, 0.06])


def step(confidence: np.ndarray) -> DecisionInputs:
    num_requests = len(confidence)
    return DecisionInputs(
        confidence=confidence,
        num_draft_tokens=np.full(num_requests, K),
        has_confidence=np.ones(num_requests, dtype=bool),
        samples=np.ones(num_requests, dtype=bool),
        weight=np.ones(num_requests),
        context_tokens=np.zeros(num_requests, dtype=np.int64),
        num_other_tokens=num_requests,
    )


def table() -> CostTable:
    """As an H200 verifies for a small model: 4 rows in 1.00 ms, 8 in 1.02."""
    sizes = {1: 0.99, 2: 1.0, 4: 1.0, 8: 1.02, 64: 1.1, 256: 1.3, 1024: 2.5, 2048: 4.0}
    return CostModel({rows: [ms] for rows, ms in sizes.items()}, 2048).compile()


def knowing(pull: float) -> RunningMean:
    mean, num_samples, *_ = new_running_mean(K)
    return RunningMean(mean, num_samples, SURVIVAL, np.full(K, pull))


def decided(inputs: DecisionInputs, policy: str, pull: float) -> DecisionOutcome:
    return decide(inputs, build_policy(policy), table(), knowing(pull))


@pytest.mark.parametrize("policy", ["throughput", "slo(40)"])
def test_a_bad_draft_of_one_request_does_not_cut_its_next_one(policy: str) -> None:
    bad = step(np.full((1, K), 0.25))
    assert decided(bad, policy, pull=0.0).budget == 3
    assert decided(bad, policy, pull=0.5).budget == K


@pytest.mark.parametrize("policy", ["ratio", "greedy-causal", "threshold(0.1)", "fixed(3)"])
def test_other_policies_take_confidences_as_they_are(policy: str) -> None:
    inputs = step(np.full((3, K), 0.25))
    told, pulled = decided(inputs, policy, 0.0), decided(inputs, policy, 0.9)
    assert (told.budget, told.expected_tokens) == (pulled.budget, pulled.expected_tokens)


def test_for_many_requests_nearly_nothing_changes() -> None:
    inputs = step(np.random.default_rng(1).uniform(0.1, 1.0, (256, K)))
    told, pulled = decided(inputs, "throughput", 0.0), decided(inputs, "throughput", 0.6)
    assert pulled.budget == pytest.approx(told.budget, rel=0.03)
    assert pulled.expected_tokens == pytest.approx(told.expected_tokens, rel=0.01)


def test_one_request_is_pulled_by_all_that_its_drafts_do_not_tell() -> None:
    survival = np.cumprod(np.full((1, K), 0.5), axis=1)
    pull = np.full(K, 0.6)
    np.testing.assert_allclose(
        anticipate(survival, 1, SURVIVAL, pull), 0.4 * survival + 0.6 * SURVIVAL
    )
    half = anticipate(survival, 3, SURVIVAL, pull)
    np.testing.assert_allclose(half, 0.7 * survival + 0.3 * SURVIVAL)


def test_survival_never_rises_along_a_draft() -> None:
    pull = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    expected = anticipate(np.full((1, K), 0.1), 1, SURVIVAL, pull)
    assert (np.diff(expected) <= 0.0).all()
    outcome = decide(
        step(np.full((2, K), 0.1)),
        build_policy("throughput"),
        table(),
        RunningMean(*new_running_mean(K)[:2], SURVIVAL, pull),
    )
    assert outcome.verify_lens.sum() == outcome.budget
