"""What decides recorded and simulated steps learns as a service does."""

from __future__ import annotations

import numpy as np
from specsched_scheduler.learning.anticipator import Anticipator

from tests.scheduler_service.learning.test_succession import (
    K,
    drafted,
    expected_of_next,
    independent,
    learned,
)

SLOT, GENERATION = np.array([3]), np.array([1])


def test_steps_taken_in_one_by_one_teach_what_a_lesson_of_many_does() -> None:
    anticipator, confidence = Anticipator(4, K), independent(1, 320)
    told = [
        anticipator.anticipate(step_id, SLOT, GENERATION, row[None], 1)
        for step_id, row in enumerate(confidence)
    ]
    np.testing.assert_array_equal(told[30][0], confidence[30].astype(np.float32))
    pull = learned(drafted(confidence)).pull
    expected = expected_of_next(confidence, np.ones(320, dtype=np.int64), pull)
    np.testing.assert_allclose(np.cumprod(told[-1]), expected[-1], atol=0.02)
    assert abs(expected[-1] - np.cumprod(confidence[-1])).max() > 0.1


def test_of_many_requests_nothing_is_pulled() -> None:
    anticipator, confidence = Anticipator(4, K), independent(2, 64)
    for step_id, row in enumerate(confidence):
        told = anticipator.anticipate(step_id, SLOT, GENERATION, row[None], 65)
        np.testing.assert_array_equal(told[0], row.astype(np.float32))
