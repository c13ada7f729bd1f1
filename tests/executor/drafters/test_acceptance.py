import pytest
from specsched_executor.drafters.acceptance import AcceptanceStatistics


def test_starts_at_the_prior():
    assert AcceptanceStatistics(2, 3).confidence().tolist() == [[0.5] * 3] * 2


def test_a_rejection_says_nothing_about_what_follows():
    statistics = AcceptanceStatistics(1, 3)
    for _ in range(400):
        statistics.observe(0, num_verified=3, num_accepted=1)
    assert statistics.confidence()[0].tolist() == pytest.approx([0.99, 0.01, 0.5], abs=0.01)


def test_what_was_not_verified_says_nothing():
    statistics = AcceptanceStatistics(1, 3)
    for _ in range(400):
        statistics.observe(0, num_verified=1, num_accepted=1)
    assert statistics.confidence()[0].tolist() == pytest.approx([0.99, 0.5, 0.5], abs=0.01)


def test_classes_are_apart():
    statistics = AcceptanceStatistics(2, 1)
    statistics.observe(1, 1, 1)
    assert statistics.confidence()[0, 0] == 0.5 < statistics.confidence()[1, 0]


def test_old_outcomes_fade():
    statistics = AcceptanceStatistics(1, 1)
    for accepted in [1] * 1000 + [0] * 600:
        statistics.observe(0, 1, accepted)
    assert statistics.confidence()[0, 0] < 0.1
