from __future__ import annotations

import json

import numpy as np
import pytest
from specsched_executor.evaluation.calibration_file import CalibrationFile, logits
from specsched_executor.evaluation.statistics import (
    area_under_curve,
    mean_accepted,
    position_quality,
    reliability,
)


def test_mean_accepted_is_per_step_and_its_interval_over_requests():
    accepted = np.array([1, 1, 1, 5])
    found = mean_accepted(accepted, np.array([0, 0, 0, 1]))
    assert found.mean == 2.0
    assert (found.num_steps, found.num_requests) == (4, 2)
    # Residuals of the sums are -3 and 3: sqrt(18) / 4 * sqrt(2) either way; 1 degree of freedom.
    assert found.high - found.mean == pytest.approx(12.706 * 18**0.5 / 4 * 2**0.5)


@pytest.mark.parametrize("num_steps", [0, 3])
def test_fewer_than_two_requests_tell_of_no_spread(num_steps: int):
    found = mean_accepted(np.ones(num_steps, dtype=int), np.zeros(num_steps, dtype=int))
    assert (found.mean, found.low, found.high) == (1.0 if num_steps else None, None, None)


@pytest.mark.parametrize("num_requests", [4, 40])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(num_requests: int):
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        of_request = rng.beta(2, 2, num_requests)
        request = np.repeat(np.arange(num_requests), 30)
        accepted = rng.binomial(3, of_request[request])
        found = mean_accepted(accepted, request)
        held += found.low <= 1.5 <= found.high
    assert 0.9 < held / 300 < 0.985


def test_area_under_curve():
    outcome = np.array([0.0, 0, 1, 1])
    assert area_under_curve(np.array([0.1, 0.2, 0.3, 0.4]), outcome) == 1.0
    assert area_under_curve(np.array([0.4, 0.3, 0.2, 0.1]), outcome) == 0.0
    assert area_under_curve(np.full(4, 0.5), outcome) == 0.5
    assert area_under_curve(np.array([0.1, 0.3, 0.2, 0.4]), outcome) == 0.75
    assert area_under_curve(np.array([0.1]), np.array([1.0])) is None


def test_true_probabilities_are_well_calibrated_and_others_are_not():
    rng = np.random.default_rng(2)
    confidence = rng.uniform(0.05, 0.95, (20_000, 3))
    accepted = (rng.uniform(size=confidence.shape) < confidence).cumprod(axis=1).sum(axis=1)
    verified = np.full(len(confidence), 3)
    true = position_quality(confidence, verified, accepted)
    assert [q.position for q in true] == [0, 1, 2]
    assert true[1].num_reached == (accepted >= 1).sum()
    assert max(q.ece for q in true) < 0.02
    assert max(q.cumulative_ece for q in true) < 0.02
    wrong = position_quality(confidence**0.5, verified, accepted)
    assert min(q.ece for q in wrong) > 0.1
    assert all(a.brier < b.brier for a, b in zip(true, wrong, strict=True))


def test_drafts_that_were_not_verified_say_nothing():
    confidence = np.array([[0.5, 0.9], [0.5, 0.9]])
    (only,) = position_quality(confidence, np.array([1, 1]), np.array([1, 1]))
    assert only.position == 0
    assert only.acceptance == 1.0


def test_reliability_bins():
    bins = reliability(np.array([0.05, 0.05, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]))
    assert [b.num_rows for b in bins] == [2, 2]
    assert bins[0].observed == 0.5
    assert bins[1].predicted == pytest.approx(0.975)


def learned_state(path, **calibration):
    part = {"temperature": [1.0, 2.0], "intercept": [0.0, 0.5]}
    entry = {"calibration": {"greedy": part, "sampled": {**part, **calibration}}}
    path.write_text(json.dumps({"entries": [entry]}))
    return path


def test_a_learned_state_is_applied_to_its_class(tmp_path):
    path = learned_state(tmp_path / "state.json", intercept=[1.0, 0.0])
    calibration = CalibrationFile.read(path)
    confidence = np.array([[0.5, 0.8]])
    greedy, sampled = (calibration.apply(confidence, of_class) for of_class in (0, 1))
    assert greedy[0, 0] == pytest.approx(0.5)
    assert sampled[0, 0] == pytest.approx(1 / (1 + np.exp(-1)))
    assert greedy[0, 1] == pytest.approx(1 / (1 + np.exp(-(np.log(4) / 2 + 0.5))))
    assert np.isfinite(logits(np.array([0.0, 1.0]))).all()


@pytest.mark.parametrize(
    "changes", [{"temperature": [1.0]}, {"temperature": [0.0, 1.0]}, {"intercept": "no"}]
)
def test_another_file_is_refused_by_name(tmp_path, changes):
    path = learned_state(tmp_path / "state.json", **changes)
    with pytest.raises(ValueError, match=r"state\.json"):
        CalibrationFile.read(path)
