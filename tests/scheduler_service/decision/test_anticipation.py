"""A budget from old confidences, where it is known how little these say of the next draft."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from specsched_scheduler.decision.anticipation import (
    OwnDrafts,
    anticipate_rows,
    new_own_drafts,
    note_own_draft,
)
from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.inputs import DecisionInputs
from specsched_scheduler.policies.registry import build_policy

K = 7
NO_PULL, MUCH = np.zeros(K), np.full(K, 0.6)

Floats = npt.NDArray[np.floating]


def anticipated(
    own: OwnDrafts, confidence: Floats, pull: Floats, *, num_sampling: int = 1, generation: int = 1
) -> Floats:
    """Of requests in the first slots; rows are as long as they have numbers."""
    given = confidence.astype(np.float32)
    num_rows = len(given)
    num_valid = np.isfinite(given).sum(axis=1)
    of = np.arange(num_rows), np.full(num_rows, generation)
    out = np.empty_like(given)
    return anticipate_rows(own, pull, *of, num_valid, num_rows, num_sampling, given, out)


def by_definition(own: list[Floats], pull: Floats, num_sampling: int) -> Floats:
    """own: survivals of a request's drafts, [k] each, oldest first."""
    mean = own[0].copy()
    for count, survival in enumerate(own[1:], start=2):
        mean += (survival - mean) / min(count, 8)
    pulled = own[-1] + 1 / num_sampling * pull * (mean - own[-1])
    return np.minimum.accumulate(pulled)


@pytest.mark.parametrize("num_sampling", [1, 5, 64])
def test_survivals_are_pulled_towards_those_of_the_last_drafts(num_sampling: int) -> None:
    rng, own = np.random.default_rng(1), new_own_drafts(2, K)
    pull, seen = np.linspace(0.9, 0.2, K), ([], [])
    for _ in range(20):
        confidence = rng.uniform(0.1, 1.0, (2, K))
        told = anticipated(own, confidence, pull, num_sampling=num_sampling)
        for row, drafts in enumerate(seen):
            drafts.append(np.cumprod(confidence[row]))
            expected = by_definition(drafts, pull, num_sampling)
            np.testing.assert_allclose(np.cumprod(told[row]), expected, rtol=1e-4)


def test_confidences_stay_as_they_are_where_nothing_was_learned() -> None:
    own, rng = new_own_drafts(3, K), np.random.default_rng(2)
    for _ in range(5):
        confidence = rng.uniform(0.0, 1.0, (3, K)).astype(np.float32)
        np.testing.assert_array_equal(anticipated(own, confidence, NO_PULL), confidence)


def test_the_first_draft_of_a_request_is_all_that_is_known_of_it() -> None:
    own, confidence = new_own_drafts(1, K), np.full((1, K), 0.5)
    anticipated(own, np.full((1, K), 0.9), MUCH)
    told = anticipated(own, confidence, MUCH, generation=2)
    np.testing.assert_array_equal(told, confidence.astype(np.float32))


def test_impossible_and_missing_values_pass_through() -> None:
    own = new_own_drafts(2, K)
    confidence = np.full((2, K), 0.5, dtype=np.float32)
    anticipated(own, np.full((2, K), 0.9), MUCH)
    confidence[0, 3:] = np.nan
    confidence[1, 2] = 7.0
    told = anticipated(own, confidence, MUCH)
    np.testing.assert_array_equal(told[0, 3:], confidence[0, 3:])
    np.testing.assert_array_equal(told[1, 2:], confidence[1, 2:])
    assert (told[0, :3] > 0.5).all()
    assert np.isfinite(own.survival).all()


def test_survival_never_rises_along_a_draft() -> None:
    own = new_own_drafts(1, K)
    anticipated(own, np.full((1, K), 0.95), MUCH)
    told = anticipated(own, np.full((1, K), 0.1), np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]))
    assert ((told >= 0.0) & (told <= 1.0)).all()


def test_a_step_in_which_nobody_samples_is_anticipated_too() -> None:
    own = new_own_drafts(2, K)
    told = anticipated(own, np.full((2, K), 0.5), MUCH, num_sampling=0)
    np.testing.assert_array_equal(told, np.full((2, K), 0.5, dtype=np.float32))


def test_a_short_draft_leaves_what_is_known_of_later_positions() -> None:
    own = new_own_drafts(1, 3)
    note_own_draft(own, 0, 1, np.array([0.9, 0.8, 0.7]))
    note_own_draft(own, 0, 1, np.array([0.5]))
    assert own.survival[0].tolist() == [0.7, 0.8, 0.7]
    assert own.num_drafts[0].tolist() == [2, 1, 1]


def table() -> CostTable:
    """As an H200 verifies for a small model: 4 rows in 1.00 ms, 8 in 1.05."""
    sizes = {1: 0.99, 2: 1.0, 4: 1.0, 8: 1.05, 64: 1.1, 256: 1.3, 1024: 2.5, 2048: 4.0}
    return CostModel({rows: [ms] for rows, ms in sizes.items()}, 2048).compile()


def test_a_bad_draft_of_one_request_does_not_cut_its_next_one() -> None:
    own = new_own_drafts(1, K)
    for _ in range(7):
        anticipated(own, np.full((1, K), 0.7), MUCH)
    bad = np.full((1, K), 0.25)
    budgets = [_budget(confidence) for confidence in (bad, anticipated(own, bad, MUCH))]
    assert budgets == [3, K]


def _budget(confidence: Floats) -> int:
    inputs = DecisionInputs(
        confidence=confidence,
        num_draft_tokens=np.array([K]),
        has_confidence=np.array([True]),
        samples=np.array([True]),
        weight=np.ones(1),
        context_tokens=np.zeros(1, dtype=np.int64),
        num_other_tokens=1,
    )
    return decide(inputs, build_policy("throughput"), table()).budget
