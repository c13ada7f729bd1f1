"""What this scheduler knows of kinds of executors, attached or not."""

from __future__ import annotations

from collections.abc import Iterable

from specsched_scheduler.learning.document import Entry, LearnedState, write_state
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.learning.learner import ExecutorKind

__all__ = ["MAX_ENTRIES", "LearnedStates"]

MAX_ENTRIES = 256


class LearnedStates:
    """Lives on the server's event loop. is_frozen: of all attachments alike.

    max_bytes: of the document, which has to fit into one message. It has MAX_ENTRIES at most. What
    is learned here displaces what was for the longest time not; what is imported has to fit.
    """

    def __init__(self, state: LearnedState, *, is_frozen: bool, max_bytes: int = 4 << 20) -> None:
        self.is_frozen = is_frozen
        self._state = state
        self._max_bytes = max_bytes

    def of(self, kind: ExecutorKind) -> Entry | None:
        """What is known of this kind."""
        return self._state.entry_of(
            kind.model, kind.drafter, kind.max_draft_tokens, kind.cost_fingerprint
        )

    def keep(self, entry: Entry) -> None:
        """Remember what was learned of an executor that left."""
        self._state = self._bounded(self._state.merged((entry,)))

    def adopt(self, state: LearnedState) -> None:
        """Know what a document knows; where both do, go by the document.

        Raises StateError where there would be too much to know.
        """
        merged = self._state.merged(state.entries)
        if len(merged.entries) > MAX_ENTRIES:
            raise StateError(
                f"entries: {len(state.entries)} beside the {len(self._state.entries)} known make"
                f" {len(merged.entries)} kinds of executors; accepted: {MAX_ENTRIES} in all"
            )
        num_bytes = len(write_state(merged).encode())
        if num_bytes > self._max_bytes:
            raise StateError(
                f"entries: with what is known they are a document of {num_bytes} bytes; accepted:"
                f" {self._max_bytes} (--max-message-bytes has room for more)"
            )
        self._state = merged

    def document(self, live: Iterable[Entry]) -> LearnedState:
        """Everything known, the attached executors' entries as they are now."""
        return self._bounded(self._state.merged(live))

    def _bounded(self, state: LearnedState) -> LearnedState:
        """Its last entries, as many as fit."""
        kept: list[Entry] = []
        left = self._max_bytes
        for entry in reversed(state.entries[-MAX_ENTRIES:]):
            left -= len(write_state(LearnedState(entries=(entry,))).encode())
            if left < 0:
                break
            kept.append(entry)
        return LearnedState(entries=tuple(reversed(kept)))
