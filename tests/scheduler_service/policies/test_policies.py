"""What each built-in policy decides."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_scheduler.decision import (
    NO_CAP,
    CostModel,
    decide,
)
from specsched_scheduler.policies import (
    build_policy,
)

from tests.scheduler_service.policies.steps import TABLE, step


@pytest.mark.parametrize(
    ("text", "budget", "lens"),
    [
        ("off", 0, [0, 0, 0, 0]),
        ("fixed(0)", 0, [0, 0, 0, 0]),
        ("fixed(1)", 4, [1, 1, 1, 1]),
        ("fixed(2)", 8, [2, 2, 2, 2]),
        ("fixed(9)", 12, [3, 3, 3, 3]),
        ("threshold(1)", 0, [0, 0, 0, 0]),
        ("threshold(0.5)", 3, [1, 1, 1, 0]),
        ("threshold(0.4)", 7, [3, 1, 3, 0]),
        ("threshold(0)", 12, [3, 3, 3, 3]),
        ("greedy-causal", 1, [1, 0, 0, 0]),
        ("ratio", 12, [3, 3, 3, 3]),
        ("throughput", 12, [3, 3, 3, 3]),
    ],
)
def test_built_in_decisions(text: str, budget: int, lens: list[int]) -> None:
    outcome = decide(step(), build_policy(text), TABLE.compile())
    assert (outcome.budget, outcome.verify_lens.tolist()) == (budget, lens)


@pytest.mark.parametrize("text", ["throughput", "ratio", "greedy-causal"])
def test_all_is_verified_without_a_model(text: str) -> None:
    two_sizes = CostModel({4: [1.0], 8: [100.0]}, 8).compile()
    outcome = decide(step(), build_policy(text), two_sizes)
    assert (outcome.budget, outcome.model_state.name) == (12, "NO_MODEL")
    assert outcome.expected_ms is None


@pytest.mark.parametrize(("text", "budget"), [("off", 0), ("fixed(1)", 4), ("threshold(0.5)", 3)])
def test_counting_policies_need_no_model(text: str, budget: int) -> None:
    outcome = decide(step(), build_policy(text), CostModel({}, 0).compile())
    assert (outcome.budget, outcome.model_state.name) == (budget, "NO_MODEL")


@pytest.mark.parametrize("text", ["throughput", "fixed(2)", "threshold(0)", "ratio"])
def test_the_cap_of_the_executor_binds_every_policy(text: str) -> None:
    outcome = decide(step(max_budget=5), build_policy(text), CostModel({}, 0).compile())
    assert outcome.budget == 5
    assert outcome.flags.name == "CAPPED"


def test_prefill_is_left_out_by_throughput_alone() -> None:
    """A chunk of 96 rows makes a draft look free to `ratio`."""
    sizes = {size: [1.0 + 0.1 * size] for size in range(4, 128, 4)}
    table = CostModel(sizes, 124).compile()
    inputs = step(num_other_tokens=100, num_prefill_tokens=96)
    alone = step(num_other_tokens=4)
    budgets = {
        text: decide(inputs, build_policy(text), table).budget for text in ("throughput", "ratio")
    }
    assert budgets["ratio"] > budgets["throughput"]
    assert budgets["throughput"] == decide(alone, build_policy("throughput"), table).budget


def test_weight_multiplies_gain_bonus_and_rank() -> None:
    inputs = step(weight=np.array([1.0, 1.0, 1.0, 10.0]), max_budget=3)
    outcome = decide(inputs, build_policy("threshold(0)"), TABLE.compile())
    assert outcome.verify_lens.tolist() == [1, 1, 0, 1]
    assert outcome.expected_tokens == pytest.approx(4 + 0.9 + 0.6 + 0.2)


def test_no_cap_is_the_default() -> None:
    assert step().max_budget == NO_CAP
