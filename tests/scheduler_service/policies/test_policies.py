"""What each built-in policy decides."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_scheduler.decision import (
    NO_CAP,
    CostModel,
    DecisionFlags,
    decide,
)
from specsched_scheduler.policies import (
    build_policy,
)

from tests.scheduler_service.policies.steps import TABLE, step

SIZES = [(4, 10.0), (5, 10.0), (8, 14.0), (16, 14.2)]


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
        ("slo(100)", 12, [3, 3, 3, 3]),
        ("slo(14.1)", 1, [1, 0, 0, 0]),
        ("slo(step_ms=0, min_tokens_per_second=95)", 1, [1, 0, 0, 0]),
        ("slo(step_ms=11, min_tokens_per_second=1)", 1, [1, 0, 0, 0]),
    ],
)
def test_built_in_decisions(text: str, budget: int, lens: list[int]) -> None:
    outcome = decide(step(), build_policy(text), TABLE.compile())
    assert (outcome.budget, outcome.verify_lens.tolist()) == (budget, lens)


@pytest.mark.parametrize("text", ["throughput", "ratio", "greedy-causal", "slo(1)"])
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


def test_slo_stays_below_its_bound_by_the_noise_of_the_profile() -> None:
    """Samples that spread by 2 % leave 6 % of room: 14.2 * 1.06 = 15.05."""
    samples = {
        size: [ms * (1 + d) for d in (-0.02, -0.0135, 0, 0.0135, 0.02)] for size, ms in SIZES
    }
    table = CostModel(samples, 16).compile()
    assert table.noise_ratio == pytest.approx(0.02, rel=0.01)
    budgets = [decide(step(), build_policy(f"slo({ms})"), table).budget for ms in (14.9, 15.2)]
    assert budgets == [1, 12]


def test_slo_without_a_budget_in_bound_verifies_nothing_and_says_so() -> None:
    outcome = decide(step(), build_policy("slo(10.2)"), TABLE.compile())
    assert (outcome.budget, outcome.flags & DecisionFlags.OUT_OF_BOUND) == (0, 32)


def test_a_floor_that_one_token_a_step_cannot_reach_gives_way_to_throughput() -> None:
    """Where a step without drafts is too slow, only accepted drafts can bring the speed."""
    floor = decide(
        step(), build_policy("slo(step_ms=0, min_tokens_per_second=101)"), TABLE.compile()
    )
    assert (floor.budget, floor.flags & DecisionFlags.OUT_OF_BOUND) == (12, 32)
    within = "slo(step_ms=11, min_tokens_per_second=101)"
    assert decide(step(), build_policy(within), TABLE.compile()).budget == 1


def test_slo_counts_the_prefill_that_the_ratio_leaves_out() -> None:
    """Its users wait for the whole step."""
    table = CostModel({size: [1.0 + 0.02 * size] for size in range(4, 128, 4)}, 124).compile()
    inputs = step(num_other_tokens=100, num_prefill_tokens=96)
    assert decide(inputs, build_policy("throughput"), table).budget == 8
    bounded = decide(inputs, build_policy("slo(3.2)"), table)
    assert bounded.budget == 4
    assert bounded.expected_ms is not None
    assert bounded.expected_ms * 1.03 <= 3.2


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
