"""How often drafts are accepted, learnt from verified outcomes alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["AcceptanceStatistics"]

_PRIOR_WEIGHT = 4.0
"""Observations the prior counts for."""
_PRIOR_MEAN = 0.5
"""Acceptance assumed of a draft nothing is known about."""
_DECAY = 0.995
"""Weight of the past per observed draft: about the last 200 of a class count."""


class AcceptanceStatistics:
    """P(draft j accepted | 0..j-1 accepted), per class of draft and position j.

    A Beta(2, 2) prior updated with decayed counts. A verified draft with `a` accepted of `v` is
    one trial at each position 0..min(a, v-1), won at those below a: what lies behind a rejection,
    or was not verified, says nothing. Which drafts are verified depends on the class and the
    position, never on the tokens, so the selection does not bias the counts.
    """

    def __init__(self, num_classes: int, max_draft_tokens: int) -> None:
        self._positions = np.arange(max_draft_tokens)
        self._trials = np.zeros((num_classes, max_draft_tokens))
        self._accepted = np.zeros((num_classes, max_draft_tokens))

    def observe(self, draft_class: int, num_verified: int, num_accepted: int) -> None:
        """Count one draft of which at least one token was verified."""
        tried = self._positions < min(num_accepted + 1, num_verified)
        won = self._positions < num_accepted
        decay = np.where(tried, _DECAY, 1.0)
        self._trials[draft_class] = self._trials[draft_class] * decay + tried
        self._accepted[draft_class] = self._accepted[draft_class] * decay + won

    def confidence(self) -> npt.NDArray[np.float32]:
        """float32 [num_classes, k]: posterior means."""
        prior = _PRIOR_MEAN * _PRIOR_WEIGHT
        means = (self._accepted + prior) / (self._trials + _PRIOR_WEIGHT)
        return means.astype(np.float32)
