"""The prior of decisions, learned from one step after the other by whoever has no service."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.workspace import RunningMean, new_running_mean
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.learning.succession import Succession

__all__ = ["PriorLearner"]

_STEPS_PER_LESSON = 32
"""As a service learns where steps come fast."""


class PriorLearner:
    """Learns how drafts follow one another from steps that were recorded or made up.

    prior: what to decide the next step by. Its running means are updated by decisions, in place.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.prior = new_running_mean(max_draft_tokens)
        self._succession = Succession(max_draft_tokens)
        self._as_given = Calibration.identity(max_draft_tokens)
        self._waiting: list[DraftedSteps] = []

    def observe(
        self,
        source_step_id: int,
        slot_id: npt.NDArray[np.integer[Any]],
        generation: npt.NDArray[np.integer[Any]],
        confidence: npt.NDArray[np.floating[Any]],
    ) -> None:
        """Take in the drafts made at the end of a step: of requests [R], calibrated [R, k], NaN
        where there is none."""
        self._waiting.append(
            DraftedSteps(
                source_step_id=np.array([source_step_id], dtype=np.int64),
                row_begin=np.array([0, len(slot_id)], dtype=np.int64),
                slot_id=slot_id.astype(np.uint32),
                generation=generation.astype(np.uint32),
                is_greedy=np.zeros(len(slot_id), dtype=np.bool_),
                confidence=confidence.astype(np.float32),
            )
        )
        if len(self._waiting) < _STEPS_PER_LESSON:
            return
        steps = reduce(DraftedSteps.followed_by, self._waiting)
        self._waiting.clear()
        self._succession.observe(steps, self._as_given)
        if self._succession.update():
            mean, num_samples, *_ = self.prior
            self.prior = RunningMean(mean, num_samples, *self._succession.anticipation)
