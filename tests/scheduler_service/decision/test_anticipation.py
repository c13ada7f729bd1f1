"""Old confidences of one request say little of its next draft; those of many, how many survive."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.decision.workspace import RunningMean, new_running_mean
from specsched_scheduler.policies.registry import build_policy

K = 7
NEARLY_FREE = {rows: 1.0 + 0.01 * rows for rows in (*range(1, 9), 16, 64, 512, 2048)}


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


def drafts(seed: int, num_requests: int) -> np.ndarray:
    """Each draft goes well or badly as a whole."""
    rng = np.random.default_rng(seed)
    goes_well = rng.random((num_requests, 1)) < 0.5
    return np.where(goes_well, 0.9, 0.2) * rng.uniform(0.9, 1.1, (num_requests, K))


def after(num_steps: int, num_requests: int, policy: str = "throughput") -> RunningMean:
    prior = new_running_mean(K)
    for seed in range(num_steps):
        decide(step(drafts(seed, num_requests)), build_policy(policy), table(), prior)
    return prior


def table() -> CostTable:
    return CostModel({rows: [ms] for rows, ms in NEARLY_FREE.items()}, 2048).compile()


@pytest.mark.parametrize("policy", ["throughput", "slo(40)"])
def test_a_bad_draft_of_one_request_does_not_cut_its_next_one(policy: str) -> None:
    bad = step(np.full((1, K), 0.2))
    alone = decide(bad, build_policy(policy), table())
    informed = decide(bad, build_policy(policy), table(), after(200, 1))
    assert alone.budget <= 3
    assert informed.budget == K


@pytest.mark.parametrize("policy", ["ratio", "greedy-causal", "threshold(0.1)"])
def test_other_policies_take_confidences_as_they_are(policy: str) -> None:
    inputs = step(drafts(999, 3))
    alone = decide(inputs, build_policy(policy), table())
    informed = decide(inputs, build_policy(policy), table(), after(200, 3, policy))
    assert (alone.budget, alone.expected_tokens) == (informed.budget, informed.expected_tokens)


def test_for_many_requests_nearly_nothing_changes() -> None:
    inputs = step(drafts(999, 256))
    alone = decide(inputs, build_policy("throughput"), table())
    informed = decide(inputs, build_policy("throughput"), table(), after(50, 256))
    assert informed.budget == pytest.approx(alone.budget, rel=0.05)
    assert informed.expected_tokens == pytest.approx(alone.expected_tokens, rel=0.01)


def test_expected_tokens_of_one_request_are_right_on_average() -> None:
    """Against drafts independent of those that the plan saw."""
    prior, expected, true = new_running_mean(K), 0.0, 0.0
    for seed in range(2000):
        outcome = decide(step(drafts(seed, 1)), build_policy("throughput"), table(), prior)
        survival = np.cumprod(drafts(10_000 + seed, 1)[0])
        if seed >= 100:
            expected += outcome.expected_tokens
            true += 1 + survival[: outcome.budget].sum()
    assert expected == pytest.approx(true, rel=0.05)


def test_a_change_of_load_is_followed() -> None:
    prior = after(300, 1)
    for _ in range(1500):
        decide(step(np.full((1, K), 0.05)), build_policy("throughput"), table(), prior)
    assert prior.survival[0] < 0.1
