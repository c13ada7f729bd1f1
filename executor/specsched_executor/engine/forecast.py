"""How often a request without a draft has one in the next step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specsched_executor.engine.batch import StepBatch

__all__ = ["DraftForecast"]

_DECAY = 0.98
"""Weight of the past per step: about the last 50 steps count."""
_NEGLIGIBLE = 0.02
"""Below this share the first draft after a pause is not worth a less precise plan."""


class DraftForecast:
    """Running share of the requests without a draft in one step that brought one to the next.

    Starts at 1 with the weight of one observation: a draft that was expected and does not come
    costs nothing but the precision of one plan.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_seen = 1.0
        self._num_appeared = 1.0
        self._num_silent = 0
        self._silent = np.zeros(num_slots, dtype=np.int64)
        """By slot: generation of the request that was silent in the step observed last."""

    def observe(self, batch: StepBatch, was_offered_draft: npt.NDArray[np.bool_]) -> None:
        """Compare a step's drafts with the requests that had none in the step before.

        was_offered_draft: bool [R], of whom a draft was asked then.
        """
        slots, has_draft = batch.slot_ids, batch.num_draft_tokens > 0
        followed = was_offered_draft & (self._silent[slots] == batch.generations)
        self._num_seen = self._num_seen * _DECAY + np.count_nonzero(followed)
        self._num_appeared = self._num_appeared * _DECAY + np.count_nonzero(followed & has_draft)
        is_silent = batch.samples & ~has_draft
        self._num_silent = int(np.count_nonzero(is_silent))
        self._silent[:] = 0  # no request's
        self._silent[slots] = np.where(is_silent, batch.generations, 0)

    @property
    def num_expected_rows(self) -> int:
        """Of the requests silent in the step observed last: how many to expect drafts of.

        At least one, unless drafts hardly ever appear: a request alone would otherwise never have
        the first draft after a pause verified.
        """
        share = min(1.0, self._num_appeared / max(self._num_seen, 1e-9))
        if share < _NEGLIGIBLE:
            return 0
        return min(self._num_silent, max(1, round(share * self._num_silent)))
