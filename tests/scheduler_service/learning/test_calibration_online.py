"""Following the traffic from one domain to another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from specsched_scheduler.decision.calibration import GREEDY, NUM_CLASSES, SAMPLED
from specsched_scheduler.learning.calibration.drift import find_change
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.online import OnlineCalibrator
from specsched_scheduler.learning.calibration.parameters import Calibration, survival

from tests.scheduler_service.learning.traces import DOMAINS, K, drafts, replay

NUM_REQUESTS = 64
BEFORE, SETTLE, AFTER = 300, 300, 500


def expected_against_actual(of_class, first, second, seed, *, learns=True):
    """Relative error of the expected acceptances after the change, from SETTLE steps on."""
    calibrator = OnlineCalibrator(K)
    expected = actual = 0.0
    schedule = [(BEFORE, DOMAINS[first]), (SETTLE + AFTER, DOMAINS[second])]
    for step, rows in enumerate(replay(drafts(of_class), schedule, NUM_REQUESTS, seed)):
        calibration = calibrator.calibration
        if step >= BEFORE + SETTLE:
            temperature = calibration.temperature[of_class]
            reach = survival(rows.logit, temperature, calibration.intercept[of_class])
            expected += reach.sum()
            actual += rows.num_accepted.sum()
        if learns:
            calibrator.observe(np.full(NUM_REQUESTS, of_class), rows)
            calibrator.update()
    return expected / actual - 1.0


# Every change of domain once, three for each class: a run takes seconds.
ROUND = list(itertools.pairwise([*DOMAINS, next(iter(DOMAINS))]))
CHANGES = [(GREEDY, *change) for change in ROUND] + [(SAMPLED, *change[::-1]) for change in ROUND]


@pytest.mark.slow
@pytest.mark.parametrize(("of_class", "first", "second"), CHANGES)
def test_the_error_is_small_300_steps_after_a_change_of_domain(of_class, first, second):
    assert abs(expected_against_actual(of_class, first, second, seed=3)) < 0.03


def test_without_learning_a_change_of_domain_shows():
    assert expected_against_actual(GREEDY, "chat", "math", seed=3, learns=False) < -0.10


def outcomes(rng, num_rows, shift):
    """Confidences of one position and outcomes that are `shift` more likely, in logits."""
    logit = rng.normal(0.0, 1.5, size=(num_rows, 1))
    held = rng.random(num_rows) < 1.0 / (1.0 + np.exp(-(logit[:, 0] + shift)))
    return 1.0 / (1.0 + np.exp(-logit[:, 0])), held.astype(np.float64)


def test_a_change_is_dated():
    rng = np.random.default_rng(5)
    old, new = outcomes(rng, 3000, 0.0), outcomes(rng, 500, 1.2)
    at = find_change(np.concatenate([old[0], new[0]]), np.concatenate([old[1], new[1]]))
    assert 2500 < at < 3400


def test_steady_traffic_does_not_change():
    rng = np.random.default_rng(6)
    assert not any(find_change(*outcomes(rng, 4000, 0.4)) for _ in range(50))


def test_few_rows_do_not_change():
    assert find_change(np.zeros(0), np.zeros(0)) == 0
    assert find_change(np.zeros(100), np.ones(100)) == 0


def rows_of(of_class, number):
    return drafts(of_class).observations.rows(slice(0, number))


def test_the_classes_do_not_mix():
    calibrator = OnlineCalibrator(K)
    rows = rows_of(GREEDY, 6000)
    calibrator.observe(np.full(len(rows), GREEDY), rows)
    assert calibrator.update()
    assert (calibrator.calibration.temperature[SAMPLED] == 1.0).all()
    assert (calibrator.calibration.intercept[SAMPLED] == 0.0).all()
    assert [each.num_rows for each in calibrator.progress] == [6000, 0]


def test_nothing_new_changes_nothing():
    calibrator = OnlineCalibrator(K)
    rows = rows_of(GREEDY, 100)
    calibrator.observe(np.full(len(rows), GREEDY), rows)
    assert not calibrator.update()
    assert calibrator.calibration.is_identity


def test_rows_that_verified_nothing_are_nothing():
    calibrator = OnlineCalibrator(K)
    rows = rows_of(GREEDY, 4000)
    nothing = np.zeros(len(rows), dtype=np.int64)
    silent = Observations(rows.logit, nothing, nothing, rows.group)
    calibrator.observe(np.full(len(rows), GREEDY), silent)
    assert not calibrator.update()
    assert calibrator.progress[GREEDY].num_rows == 0


def test_a_position_too_rare_to_judge_keeps_what_was_handed_over():
    start = Calibration(np.full((NUM_CLASSES, K), 1.5), np.full((NUM_CLASSES, K), 0.2))
    calibrator = OnlineCalibrator(K, start=start)
    rows = rows_of(GREEDY, 6000)
    verified = np.full(len(rows), 2)
    first_two = Observations(
        rows.logit, verified, np.minimum(rows.num_accepted, verified), rows.group
    )
    calibrator.observe(np.full(len(rows), GREEDY), first_two)
    calibrator.update()
    assert (calibrator.calibration.temperature[GREEDY, 2:] == 1.5).all()
    assert calibrator.calibration.temperature[GREEDY, 0] != 1.5
