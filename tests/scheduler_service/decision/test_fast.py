"""The compiled decision against the numpy definition, ties and hostile values included."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numba.core.runtime import _nrt_python
from specsched_scheduler.decision import (
    NO_CAP,
    CostModel,
    CostTable,
    DecisionFlags,
    DecisionInputs,
    PolicyCode,
    decide,
)
from specsched_scheduler.decision._order import OPEN, sort_descending
from specsched_scheduler.decision.fast import StepPlan, decide_step
from specsched_scheduler.decision.step import PolicyRule
from specsched_scheduler.decision.workspace import RunningMean, new_running_mean, new_workspace
from specsched_scheduler.policies import BuiltPolicy, build_policy

from tests.scheduler_service.decision.oracle import Step
from tests.scheduler_service.decision.recipes import RECIPES, Recipe
from tests.scheduler_service.decision.strategies import steps

POLICIES = [
    "throughput",
    "ratio",
    "greedy-causal",
    "fixed(2)",
    "threshold(0.3)",
    "off",
    "slo(3)",
    "slo(24)",
    "slo(step_ms=40, min_tokens_per_second=45)",
    "throughput(ranking=0)",
    "slo(step_ms=24, ranking=0)",
    "ratio(ranking=0, prior=0)",
    "throughput(context=0, prior=0)",
]


def run(
    inputs: DecisionInputs, policy: BuiltPolicy, table: CostTable, prior: RunningMean | None = None
) -> StepPlan:
    k = inputs.max_draft_tokens
    prior = prior or new_running_mean(k)
    return decide_step(
        policy.rule, inputs.as_step(), table, prior, new_workspace(inputs.num_requests, k)
    )


def assert_same(inputs: DecisionInputs, policy: BuiltPolicy, table: CostTable) -> StepPlan:
    plan = run(inputs, policy, table)
    outcome = decide(inputs, policy, table)
    assert plan.budget == outcome.budget
    assert plan.max_verify_len == (
        NO_CAP if outcome.max_verify_len is None else outcome.max_verify_len
    )
    assert plan.model_state == outcome.model_state
    assert DecisionFlags(plan.flags) == outcome.flags
    assert plan.num_repaired == outcome.num_repaired
    assert plan.expected_tokens == pytest.approx(outcome.expected_tokens, rel=1e-9)
    assert plan.expected_ms == pytest.approx(outcome.expected_ms or 0.0, rel=1e-12)
    return plan


@settings(max_examples=300, deadline=None)
@given(steps(), st.sampled_from(POLICIES), st.sampled_from([np.float32, np.float64]))
def test_small_steps_agree(step: Step, text: str, dtype: type) -> None:
    assert_same(step.inputs(dtype), build_policy(text), step.cost().compile())


@settings(max_examples=250, deadline=None)
@given(RECIPES, st.sampled_from(["throughput", "throughput", *POLICIES]))
def test_large_steps_agree(recipe: Recipe, text: str) -> None:
    assert_same(recipe.inputs(), build_policy(text), recipe.table())


@pytest.mark.parametrize("slope_ms", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("shape", [(256, 7), (512, 11)])
def test_realistic_steps_are_not_sorted(shape: tuple[int, int], slope_ms: float) -> None:
    """The property tests would hold for a search that always fell back to the definition."""
    recipe = Recipe(
        seed=1,
        shape=shape,
        confidence="realistic",
        is_weighted=False,
        share_known=1.0,
        num_prefill_tokens=0,
        max_budget=NO_CAP,
        dtype=np.float32,
        stride=8,
        base_ms=5.0,
        slope_ms=slope_ms,
        noise=0.0,
        limit_share=2.0,
    )
    inputs, workspace = recipe.inputs(), new_workspace(*shape)
    rule = build_policy("throughput").rule
    decide_step(rule, inputs.as_step(), recipe.table(), new_running_mean(shape[1]), workspace)
    num_sorted = workspace.bucket_count[workspace.bucket_state == OPEN].sum()
    assert num_sorted < 0.1 * inputs.num_draft_tokens.sum()


@njit
def decide_often(
    times: int, rule: Any, step: Any, table: Any, prior: Any, workspace: Any
) -> int:  # pragma: no cover - compiled
    total = 0
    for _ in range(times):
        total += decide_step(rule, step, table, prior, workspace).budget
    return total


@pytest.mark.parametrize("text", POLICIES)
def test_nothing_is_allocated_per_decision(text: str) -> None:
    inputs, table = uniform(64, 4, 0.7), staircase({64: 1.0, 128: 2.0, 512: 9.0})
    state = new_running_mean(4), new_workspace(64, 4)
    rule, step = build_policy(text).rule, inputs.as_step()

    def num_allocations(times: int) -> int:
        before = _nrt_python.memsys_get_stats_alloc()
        decide_often(times, rule, step, table, *state)
        return _nrt_python.memsys_get_stats_alloc() - before

    decide_often(1, rule, step, table, *state)
    _nrt_python.memsys_enable_stats()
    assert num_allocations(100) == num_allocations(1)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 9, NO_CAP])
@pytest.mark.parametrize("num_requests", [1, 6, 40])
def test_the_price_holds_the_draft_to_come(length: int, num_requests: int) -> None:
    """The cheapest profiled length that is enough; a length never profiled costs the next one."""
    table = CostModel(
        {1: [1.0], 64: [1.2], 128: [1.5], 256: [3.0]},
        256,
        draft={1: [0.5], 8: [0.9], 32: [2.0]},
        short_drafts={1: {1: [0.2], 32: [0.6]}, 3: {1: [0.6], 8: [0.7], 32: [1.0]}, 2: {}},
    ).compile()
    inputs = dataclasses.replace(uniform(num_requests, 4, 0.6), next_draft_tokens=length)
    plan = assert_same(inputs, build_policy("throughput"), table)
    one, full = {1: (0.2, 0.5), 6: (0.6, 0.9), 40: (0.6 + 8 * 0.4 / 31, 2.0 + 8 * 1.1 / 24)}[
        num_requests
    ]
    three = {1: 0.6, 6: 0.7, 40: 1.0 + 8 * 0.3 / 24}[num_requests]
    three = min(three, full)
    draft_ms = {0: 0.0, 1: min(one, three), 2: three, 3: three}.get(length, full)
    assert plan.expected_ms - table.verify_ms[num_requests + plan.budget] == pytest.approx(draft_ms)


def uniform(num_requests: int, k: int, value: float) -> DecisionInputs:
    ones = np.ones(num_requests)
    return DecisionInputs(
        confidence=np.full((num_requests, k), value),
        num_draft_tokens=np.full(num_requests, k),
        has_confidence=ones.astype(bool),
        samples=ones.astype(bool),
        weight=ones,
        context_tokens=np.zeros(num_requests, dtype=np.int64),
        num_other_tokens=num_requests,
    )


def staircase(points: dict[int, float]) -> CostTable:
    return CostModel({size: [ms] for size, ms in points.items()}, max(points)).compile()


def test_equal_ratios_take_the_smaller_budget() -> None:
    """256 drafts of survival 1 at exactly twice the price give exactly the ratio of none."""
    inputs = uniform(256, 1, 1.0)
    table = staircase({128: 1.0, 256: 1.0, 512: 2.0})
    assert assert_same(inputs, build_policy("throughput"), table).budget == 0
    cheaper = staircase({128: 1.0, 256: 1.0, 512: np.nextafter(2.0, 0.0)})
    assert assert_same(inputs, build_policy("throughput"), cheaper).budget == 256


def test_gains_below_rounding_end_where_the_sum_stops_growing() -> None:
    """On a flat table the first maximum is the last budget that still moves the float64 ratio."""
    rng = np.random.default_rng(3)
    inputs = uniform(256, 7, 0.9)
    tiny = DecisionInputs(
        **{
            name: getattr(inputs, name)
            for name in ("num_draft_tokens", "has_confidence", "samples", "weight")
        },
        confidence=rng.random((256, 7)) ** 20,
        context_tokens=inputs.context_tokens,
        num_other_tokens=256,
    )
    plan = assert_same(tiny, build_policy("throughput"), staircase({8: 5.0, 512: 5.0, 4096: 5.0}))
    assert 0 < plan.budget < 256 * 7


def test_every_policy_code_but_python_has_a_built_in() -> None:
    codes = {build_policy(text).rule.code for text in POLICIES}
    assert codes == {int(code) for code in PolicyCode} - {int(PolicyCode.PYTHON)}


def test_hostile_arrays_do_no_harm() -> None:
    """Counts and weights straight from shared memory: clamped, never an index or a NaN budget."""
    inputs = uniform(4, 3, 0.8)
    step = inputs.as_step()._replace(
        num_draft_tokens=np.array([3, 2**32 - 1, 7, 0], dtype=np.uint32),
        weight=np.array([np.nan, -1.0, np.inf, 1.0], dtype=np.float32),
        confidence=np.array([[np.nan] * 3, [2.0] * 3, [-1.0] * 3, [0.5] * 3], dtype=np.float32),
        context_tokens=np.full(4, 2**32 - 1, dtype=np.uint32),
    )
    table = staircase({4: 1.0, 8: 1.0, 16: 1.0})
    plan = decide_step(
        PolicyRule(int(PolicyCode.THROUGHPUT), 0.0),
        step,
        table,
        new_running_mean(3),
        new_workspace(4, 3),
    )
    assert plan.budget == plan.num_drafts == 9
    assert np.isfinite(plan.expected_tokens)


def test_running_mean_carries_over_steps() -> None:
    """The prior of a newcomer is the mean of earlier steps; compiled and plain keep the same."""
    first, second = uniform(8, 3, 0.25), uniform(8, 3, 0.75)
    newcomers = DecisionInputs(
        confidence=np.full((8, 3), np.nan),
        num_draft_tokens=np.full(8, 3),
        has_confidence=np.zeros(8, dtype=bool),
        samples=np.ones(8, dtype=bool),
        weight=np.ones(8),
        context_tokens=np.zeros(8, dtype=np.int64),
        num_other_tokens=8,
    )
    table = staircase({8: 1.0, 16: 1.0, 64: 1.0})
    policy = build_policy("throughput")
    compiled, plain = new_running_mean(3), new_running_mean(3)
    for inputs in (first, second, newcomers):
        plan = run(inputs, policy, table, compiled)
        outcome = decide(inputs, policy, table, plain)
    np.testing.assert_array_equal(compiled.mean, plain.mean)
    np.testing.assert_array_equal(compiled.mean, [0.5, 0.5, 0.5])
    assert compiled.num_samples.tolist() == [16.0] * 3
    survival = 8 * (0.5 + 0.25 + 0.125)
    assert plan.expected_tokens == outcome.expected_tokens == 8 + survival


def test_running_mean_forgets_slowly() -> None:
    """Its memory is bounded, so a changed load shows."""
    prior = new_running_mean(1)
    policy, table = build_policy("throughput"), staircase({64: 1.0, 128: 1.0, 1024: 1.0})
    for _ in range(64):
        run(uniform(256, 1, 0.9), policy, table, prior)
    for _ in range(16):
        run(uniform(256, 1, 0.1), policy, table, prior)
    remembered = 0.1 + 0.8 * (4096 / (4096 + 256)) ** 16
    assert prior.mean[0] == pytest.approx(remembered)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), max_size=400), st.integers(0, 5))
def test_sort_descending(values: list[float], begin: int) -> None:
    array: npt.NDArray[np.float64] = np.array(values, dtype=np.float64)
    begin = min(begin, len(values))
    expected = np.concatenate([array[:begin], np.sort(array[begin:])[::-1]])
    sort_descending(array, begin, len(values))
    np.testing.assert_array_equal(array, expected)
