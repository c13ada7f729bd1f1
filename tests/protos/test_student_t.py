"""Quantiles of Student's distribution, against published ones."""

from __future__ import annotations

import pytest
from specsched_protocol.student_t import student_t


@pytest.mark.parametrize(
    ("degrees", "of_95", "of_99"),
    [
        (1, 12.706, 63.657),
        (19, 2.093, 2.861),
        (30, 2.042, 2.750),
        (31, 2.040, 2.744),
        (40, 2.021, 2.704),
        (60, 2.000, 2.660),
        (120, 1.980, 2.617),
        (10**9, 1.960, 2.576),
    ],
)
def test_it_reaches_as_far_as_tables_say(degrees: int, of_95: float, of_99: float):
    found = student_t(degrees, 0.95), student_t(degrees, 0.99)
    assert found == pytest.approx((of_95, of_99), abs=6e-4)
