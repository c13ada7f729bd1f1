"""The rate of a growing total."""

from __future__ import annotations

import pytest
from specsched_executor.gateway.rate import RateMeter


def test_the_first_reading_counts_from_the_start() -> None:
    assert RateMeter(now_s=100.0).update(104.0, 20) == pytest.approx(5.0)


def test_old_readings_are_forgotten_once_newer_ones_cover_the_window() -> None:
    meter = RateMeter(now_s=0.0, window_s=10.0)
    for second in range(1, 21):
        meter.update(float(second), 100 * second)
    # Idle from second 20 on: the window falls empty.
    assert meter.update(25.0, 2000) == pytest.approx(50.0)
    assert meter.update(30.0, 2000) == 0.0


def test_rare_readings_average_over_the_time_between_them() -> None:
    meter = RateMeter(now_s=0.0, window_s=10.0)
    meter.update(60.0, 600)
    assert meter.update(120.0, 720) == pytest.approx(2.0)


def test_no_time_no_rate() -> None:
    assert RateMeter(now_s=1.0).update(1.0, 5) == 0.0


def test_frequent_readings_stay_few() -> None:
    meter = RateMeter(now_s=0.0, window_s=1.0)
    for tick in range(10_000):
        meter.update(tick / 100, tick)
    assert len(meter._readings) <= 52
