import numpy as np
import pytest
from specsched_executor.device.prior import PriorConfidence

INVALID = (np.nan, -0.1, 1.1)


def test_it_is_a_half_before_any_draft():
    assert PriorConfidence(3).mean.tolist() == [0.5, 0.5, 0.5]


def test_drafts_that_are_not_there_become_nan_and_do_not_count():
    prior = PriorConfidence(2)
    confidence, ranked = np.full((3, 2), 0.9, dtype=np.float32), np.zeros((3, 2), dtype=np.float32)
    ranked[:] = 0.2
    prior.add(confidence, ranked, np.array([2, 1, 0]))
    there = np.array([[True, True], [True, False], [False, False]])
    assert (np.isnan(confidence) == ~there).all()
    assert (np.isnan(ranked) == ~there).all()
    assert prior.mean == pytest.approx(
        [(0.95 * 0.5 + 2 * 0.2) / (0.95 + 2), (0.95 * 0.5 + 0.2) / (0.95 + 1)]
    )


@pytest.mark.parametrize("value", INVALID)
def test_what_is_no_probability_does_not_count(value):
    prior = PriorConfidence(1)
    ranked = np.array([[value], [0.8]], dtype=np.float32)
    prior.add(np.zeros_like(ranked), ranked, np.array([1, 1]))
    assert prior.mean == pytest.approx([(0.95 * 0.5 + 0.8) / (0.95 + 1)])


def test_recent_steps_weigh_more():
    prior = PriorConfidence(1)
    for value in [0.0] * 200 + [1.0] * 30:
        ranked = np.array([[value]], dtype=np.float32)
        prior.add(np.zeros_like(ranked), ranked, np.array([1]))
    assert prior.mean[0] == pytest.approx(1 - 0.95**30, abs=1e-3)
