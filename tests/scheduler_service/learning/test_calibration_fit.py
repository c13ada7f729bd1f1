"""Fitting to recorded drafts: real confidences, real outcomes."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.calibration.fit import FitConfig, fit_class
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.offline import TraceFit, calibrate_trace
from specsched_scheduler.learning.calibration.parameters import survival
from specsched_scheduler.learning.calibration.reliability import (
    expected_calibration_error,
    reliability_bins,
)

from tests.scheduler_service.learning.traces import K, drafts

MAX_ERROR = 0.02


@cache
def trace_fit(of_class: int) -> TraceFit:
    return calibrate_trace(drafts(of_class).observations)


@pytest.mark.slow
@pytest.mark.parametrize("of_class", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_held_out_error_is_small_and_never_above_the_raw_one(of_class):
    for position in trace_fit(of_class).positions:
        assert position.error_calibrated <= MAX_ERROR
        assert position.error_calibrated <= position.error_raw + 1e-4


@pytest.mark.slow
def test_the_recording_leaves_something_to_learn():
    """Without this the test above could pass by doing nothing."""
    fit = trace_fit(GREEDY)
    assert min(each.error_raw for each in fit.positions) > MAX_ERROR
    assert abs(fit.expected_raw - fit.num_accepted) > 0.05 * fit.num_accepted
    assert abs(fit.expected_calibrated - fit.num_accepted) < 0.01 * fit.num_accepted


def resampled(observations: Observations, seed: int) -> Observations:
    """The same confidences with outcomes drawn from them: nothing to learn."""
    rng = np.random.default_rng(seed)
    confidence = 1.0 / (1.0 + np.exp(-observations.logit))
    accepted = np.cumprod(rng.random(confidence.shape) < confidence, axis=1).sum(axis=1)
    return dataclasses.replace(observations, num_accepted=accepted.astype(np.int64))


def test_a_calibrated_head_is_left_alone():
    kept = [
        fit_class(resampled(drafts(SAMPLED).observations, seed), FitConfig(refines=False)).is_kept
        for seed in range(5)
    ]
    # 1.5 standard errors let one position in fifteen through by chance.
    assert np.mean(kept) < 0.2


def test_underconfidence_needs_the_intercept():
    """A head that says less than it should at every level: no temperature mends that."""
    observations = resampled(drafts(SAMPLED).observations, seed=1)
    shifted = dataclasses.replace(observations, logit=observations.logit - 1.0)
    fit = fit_class(shifted, FitConfig(refines=False))
    assert fit.is_kept[0]
    assert fit.intercept[0] == pytest.approx(1.0, abs=0.15)
    assert fit.temperature[0] == pytest.approx(1.0, abs=0.1)


def test_what_was_not_verified_does_not_teach():
    """Where low survivals are cut off, counting their rows as failures would bias positions."""
    observations = resampled(drafts(SAMPLED).observations, seed=2)
    reach = survival(observations.logit, np.ones(K), np.zeros(K))
    num_verified = np.minimum((reach > 0.3).sum(axis=1), K)
    censored = dataclasses.replace(
        observations,
        num_verified=num_verified,
        num_accepted=np.minimum(observations.num_accepted, num_verified),
    )
    fit = fit_class(censored, FitConfig(refines=False, min_error_z=-10.0, min_loss_z=-10.0))
    seen = ~np.isnan(fit.z)
    assert seen[:3].all()
    expected = survival(observations.logit, fit.temperature, fit.intercept)[:, 0].mean()
    assert expected == pytest.approx(reach[:, 0].mean(), rel=0.02)
    # The wrong reading, every draft as if all positions had been verified, is far off.
    naive = dataclasses.replace(censored, num_verified=np.full(len(censored), K))
    wrong = fit_class(naive, FitConfig(refines=False))
    expected = survival(observations.logit, wrong.temperature, wrong.intercept)[:, 1].mean()
    assert expected < 0.95 * reach[:, 1].mean()


def test_rows_without_a_confidence_do_not_teach_their_position():
    observations = drafts(SAMPLED).observations
    logit = observations.logit.copy()
    logit[:, 3:] = np.nan
    fit = fit_class(dataclasses.replace(observations, logit=logit), FitConfig(refines=False))
    assert np.isnan(fit.z[3:]).all()
    assert (fit.temperature[3:] == 1.0).all()
    assert not np.isnan(fit.z[:3]).any()


def test_a_fit_is_bounded():
    rows = 400
    logit = np.linspace(-3, 3, rows)[:, None]
    accepted = np.ones(rows, dtype=np.int64)
    observations = Observations(logit, np.ones(rows, dtype=np.int64), accepted, np.arange(rows))
    config = FitConfig(ridge=1e-6, min_error_z=-99.0, min_loss_z=-99.0, refines=False)
    fit = fit_class(observations, config)
    assert fit.intercept[0] == 3.0
    assert 0.25 <= fit.temperature[0] <= 4.0


def test_calibration_error_by_hand():
    predicted = np.array([0.1, 0.15, 0.9, 1.0])
    outcome = np.array([0.0, 1.0, 1.0, 1.0])
    # Bin 1 is off by 0.1 + 0.15 - 1, bin 9 by 0.9 + 1 - 2.
    assert expected_calibration_error(predicted, outcome) == pytest.approx((0.75 + 0.1) / 4)
    assert [each.num_rows for each in reliability_bins(predicted, outcome)] == [2, 2]
    assert expected_calibration_error(np.zeros(0), np.zeros(0)) == 0.0
