"""The cost model: what a number of rows costs, and which profiles are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from specsched_scheduler.decision import ContextCost, CostModel, InvalidRequestError
from specsched_scheduler.decision.reference import verify_ms

from tests.scheduler_service.decision import oracle
from tests.scheduler_service.decision.oracle import Step
from tests.scheduler_service.decision.strategies import steps


def price_list(verify: dict[int, list[float]], limit: int, rows: list[int]) -> list[float]:
    return verify_ms(CostModel(verify, limit).compile(), np.array(rows)).tolist()


@settings(max_examples=200, deadline=None)
@given(steps())
def test_lookup_follows_the_rules(step: Step) -> None:
    table = step.cost().compile()
    if not step.verify:
        return
    rows = np.arange(0, 130)
    expected = [oracle.verify_ms(step, row) for row in rows.tolist()]
    np.testing.assert_allclose(verify_ms(table, rows), expected, rtol=1e-12)


@settings(max_examples=100, deadline=None)
@given(steps())
def test_floor_bounds_every_longer_step(step: Step) -> None:
    table = step.cost().compile()
    for row in range(len(table.verify_ms)):
        assert table.verify_floor_ms[row] == table.verify_ms[row:].min()


def test_median_not_mean() -> None:
    verify = {8: [1.0, 1.0, 50.0], 16: [2.0, 4.0], 32: [9.0]}
    assert price_list(verify, 32, [1, 8, 9, 16, 17, 32]) == [1.0, 1.0, 3.0, 3.0, 9.0, 9.0]


def test_slow_size_is_passed_over() -> None:
    """A batch may run in a larger graph, so a slow size costs what the next one does."""
    verify = {8: [50.0], 16: [10.0], 32: [20.0]}
    assert price_list(verify, 32, [0, 8, 16, 17]) == [10.0, 10.0, 10.0, 20.0]


def test_tail_beyond_the_capture_limit() -> None:
    verify = {8: [1.0], 16: [2.0], 17: [10.0], 33: [18.0], 65: [50.0]}
    rows = [16, 17, 25, 33, 49, 65, 66, 75]
    assert price_list(verify, 16, rows) == [2.0, 10.0, 14.0, 18.0, 34.0, 50.0, 51.0, 60.0]


def test_first_tail_point_counts_from_the_limit_on() -> None:
    assert price_list({8: [1.0], 16: [2.0], 32: [5.0]}, 16, [17, 31, 32]) == [5.0, 5.0, 5.0]


def test_everything_is_tail_without_captured_sizes() -> None:
    verify = {8: [1.0], 16: [2.0], 32: [6.0]}
    assert price_list(verify, 0, [1, 8, 12, 24, 36]) == [1.0, 1.0, 1.5, 4.0, 7.0]


def test_descending_end_is_never_extrapolated_downwards() -> None:
    assert price_list({8: [1.0], 16: [9.0], 32: [8.0]}, 32, [32, 1000]) == [8.0, 8.0]


def test_limit_above_the_largest_size() -> None:
    verify = {8: [1.0], 16: [2.0], 24: [3.0]}
    assert price_list(verify, 1000, [24, 32]) == [3.0, 4.0]


def test_draft_cost() -> None:
    verify = {1: [1.0], 2: [1.0], 3: [1.0]}
    draft = {4: [3.0], 8: [2.0], 16: [4.0]}
    table = CostModel(verify, 3, draft).compile()
    assert table.draft_ms[[0, 4, 8, 9, 16]].tolist() == [2.0, 2.0, 2.0, 4.0, 4.0]
    assert table.draft_slope_ms == 0.25
    assert CostModel(verify, 3, {4: [3.0]}).compile().draft_slope_ms == 0.0
    assert CostModel(verify, 3).compile().draft_ms.tolist() == [0.0]


@pytest.mark.parametrize("num_sizes", [0, 1, 2, 3])
def test_fewer_than_three_sizes_are_no_model(num_sizes: int) -> None:
    model = CostModel({size: [1.0] for size in range(1, num_sizes + 1)}, 8)
    assert model.has_model == bool(model.compile().has_model) == (num_sizes == 3)


def test_noise_is_that_of_the_samples() -> None:
    quiet = CostModel({8: [1.0], 16: [1.0], 32: [1.0]}, 32).compile()
    loud = CostModel({size: [1.0, 1.1, 1.2] for size in (8, 16, 32)}, 32).compile()
    assert quiet.noise_ratio == 0.01
    assert loud.noise_ratio == pytest.approx(1.4826 * 0.1 / 1.1)


@pytest.mark.parametrize(
    ("verify", "draft", "limit", "named"),
    [
        ({8: []}, {}, 8, "cost.verify[tokens=8].ms = []"),
        ({8: [float("nan")]}, {}, 8, "cost.verify[tokens=8].ms = nan"),
        ({8: [float("inf")]}, {}, 8, "cost.verify[tokens=8].ms = inf"),
        ({8: [1.0, -1.0]}, {}, 8, "cost.verify[tokens=8].ms = -1.0"),
        ({8: [0.0]}, {}, 8, "cost.verify[tokens=8].ms = 0.0"),
        ({0: [1.0]}, {}, 8, "cost.verify[].tokens = 0"),
        ({1 << 21: [1.0]}, {}, 8, "cost.verify[].tokens = 2097152"),
        ({8: [1.0]}, {4: []}, 8, "cost.draft[requests=4].ms = []"),
        ({8: [1.0]}, {4: [-1.0]}, 8, "cost.draft[requests=4].ms = -1.0"),
        ({8: [1.0]}, {0: [1.0]}, 8, "cost.draft[].requests = 0"),
        ({8: [1.0]}, {}, -1, "cost.capture_limit = -1"),
    ],
)
def test_impossible_profiles_are_named(
    verify: dict[int, list[float]], draft: dict[int, list[float]], limit: int, named: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        CostModel(verify, limit, draft)
    assert str(error.value).startswith(named)


def test_tables_of_shorter_drafts_beyond_all_memory_are_refused() -> None:
    many = {length: {1 << 20: [1.0]} for length in range(1, 64)}
    with pytest.raises(InvalidRequestError) as error:
        CostModel({8: [1.0]}, 8, short_drafts=many)
    assert str(error.value).startswith("cost.draft[].requests = 1048576: must be at most 66576")


@pytest.mark.parametrize("field", ["ms_per_token", "profiled_tokens_per_request"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_context_costs_are_named(field: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=f"cost.context.{field} = "):
        ContextCost(**{field: value})


def test_a_free_draft_is_allowed() -> None:
    assert CostModel({8: [1.0]}, 8, {4: [0.0]}).compile().draft_ms.max() == 0.0
