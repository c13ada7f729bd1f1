"""What this scheduler knows of kinds of executors, attached or not."""

from __future__ import annotations

from collections.abc import Iterable

from specsched_scheduler.learning.document import Entry, LearnedState
from specsched_scheduler.learning.learner import ExecutorKind

__all__ = ["LearnedStates"]


class LearnedStates:
    """Lives on the server's event loop. is_frozen: of all attachments alike."""

    def __init__(self, state: LearnedState, *, is_frozen: bool) -> None:
        self.is_frozen = is_frozen
        self._state = state

    def of(self, kind: ExecutorKind) -> Entry | None:
        """What is known of this kind."""
        return self._state.entry_of(
            kind.model, kind.drafter, kind.max_draft_tokens, kind.cost_fingerprint
        )

    def keep(self, entry: Entry) -> None:
        """Remember what was learned of an executor that left."""
        self._state = self._state.merged((entry,))

    def adopt(self, state: LearnedState) -> None:
        """Know what a document knows; where both do, go by the document."""
        self._state = self._state.merged(state.entries)

    def document(self, live: Iterable[Entry]) -> LearnedState:
        """Everything known, the attached executors' entries as they are now."""
        return self._state.merged(live)
