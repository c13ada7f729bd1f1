"""How often a request without a draft has one in the next step."""

from __future__ import annotations

from collections.abc import Sequence

from specsched_executor.engine.batch import BatchEntry

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

    def __init__(self) -> None:
        self._num_seen = 1.0
        self._num_appeared = 1.0
        self._silent: set[tuple[int, int]] = set()

    def observe(self, entries: Sequence[BatchEntry]) -> None:
        """Compare a step's drafts with the requests that had none in the step before."""
        asked = [e for e in entries if e.request.was_offered_draft]
        followed = [e for e in asked if (e.request.slot_id, e.request.generation) in self._silent]
        self._num_seen = self._num_seen * _DECAY + len(followed)
        self._num_appeared = self._num_appeared * _DECAY
        self._num_appeared += sum(e.num_draft_tokens > 0 for e in followed)
        self._silent = {
            (e.request.slot_id, e.request.generation)
            for e in entries
            if e.samples and not e.num_draft_tokens
        }

    @property
    def num_expected_rows(self) -> int:
        """Of the requests silent in the step observed last: how many to expect drafts of.

        At least one, unless drafts hardly ever appear: a request alone would otherwise never have
        the first draft after a pause verified.
        """
        share = min(1.0, self._num_appeared / max(self._num_seen, 1e-9))
        if share < _NEGLIGIBLE:
            return 0
        return min(len(self._silent), max(1, round(share * len(self._silent))))
