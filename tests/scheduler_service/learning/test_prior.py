"""What decides recorded and simulated steps learns as a service does."""

from __future__ import annotations

import numpy as np
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.prior import PriorLearner
from specsched_scheduler.learning.succession import Succession

from tests.scheduler_service.learning.test_succession import K, drafted, independent


def test_steps_taken_in_one_by_one_teach_what_a_lesson_of_many_does() -> None:
    learner, confidence = PriorLearner(K), independent(1, 320)
    for step_id, row in enumerate(confidence):
        before = learner.prior
        learner.observe(step_id, np.array([3]), np.array([1]), row[None])
        if (step_id + 1) % 32:
            assert learner.prior is before
    succession = Succession(K)
    succession.observe(drafted(confidence), Calibration.identity(K))
    assert succession.update()
    np.testing.assert_allclose(learner.prior.pull, succession.anticipation.pull, atol=0.02)
    assert learner.prior.pull.min() > 0.5
    assert learner.prior.mean is before.mean  # what decisions update goes on
