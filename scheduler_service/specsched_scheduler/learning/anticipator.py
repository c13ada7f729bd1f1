"""Anticipation, learned from one step after the other by whoever has no service."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.anticipation import anticipate_rows, new_own_drafts
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.pairing import DraftedSteps
from specsched_scheduler.learning.succession import Succession

__all__ = ["Anticipator"]

_STEPS_PER_LESSON = 32
"""As a service learns where steps come fast."""

Ints = npt.NDArray[np.integer[Any]]


class Anticipator:
    """For steps that were recorded or made up. num_slots: requests at once have lower slot ids."""

    def __init__(self, num_slots: int, max_draft_tokens: int) -> None:
        self._own = new_own_drafts(num_slots, max_draft_tokens)
        self._succession = Succession(max_draft_tokens)
        self._as_given = Calibration.identity(max_draft_tokens)
        self._waiting: list[DraftedSteps] = []

    def anticipate(
        self,
        source_step_id: int,
        slot_id: Ints,
        generation: Ints,
        confidence: npt.NDArray[np.floating[Any]],
        num_sampling: int,
    ) -> npt.NDArray[np.float32]:
        """What the drafts made at the end of a step say of those that follow them, [R, k].

        Of requests [R]; calibrated confidences [R, k], NaN where there is none. They are learned
        from, too.
        """
        given = confidence.astype(np.float32)
        self._learn(source_step_id, slot_id, generation, given)
        expected = np.empty_like(given)
        num_valid = np.full(len(given), given.shape[1])
        requests = self._own, self._succession.pull, slot_id, generation, num_valid
        found: npt.NDArray[np.float32] = anticipate_rows(
            *requests, len(given), num_sampling, given, expected
        )
        return found

    def _learn(
        self,
        source_step_id: int,
        slot_id: Ints,
        generation: Ints,
        confidence: npt.NDArray[np.float32],
    ) -> None:
        self._waiting.append(
            DraftedSteps(
                source_step_id=np.array([source_step_id], dtype=np.int64),
                row_begin=np.array([0, len(slot_id)], dtype=np.int64),
                slot_id=slot_id.astype(np.uint32),
                generation=generation.astype(np.uint32),
                is_greedy=np.zeros(len(slot_id), dtype=np.bool_),
                confidence=confidence,
            )
        )
        if len(self._waiting) < _STEPS_PER_LESSON:
            return
        self._succession.observe(reduce(DraftedSteps.followed_by, self._waiting), self._as_given)
        self._waiting.clear()
        self._succession.update()
