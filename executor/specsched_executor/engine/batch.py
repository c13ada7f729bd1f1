"""What runs in one step."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_executor.engine.active_request import ActiveRequest

__all__ = ["BatchEntry", "StepBatch"]


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One request's part: `num_base_rows` anchors or prefill rows, then at most its drafts.

    first_position: position of the first row. samples: False inside a chunked prefill.
    num_draft_tokens: drafts present that may be verified (trimmed to KV room and useful length).
    """

    request: ActiveRequest
    first_position: int
    num_base_rows: int
    samples: bool
    num_draft_tokens: int

    @property
    def num_prefill_tokens(self) -> int:
        """Base rows that are no anchor."""
        return self.num_base_rows - int(self.samples)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The requests of a step in batch order; ties between drafts are broken in this order.

    max_draft_rows: rows left for drafts within max_num_batched_tokens.
    """

    step_id: int
    entries: tuple[BatchEntry, ...]
    max_draft_rows: int

    @property
    def num_other_tokens(self) -> int:
        """T: rows that are not drafts."""
        return sum(entry.num_base_rows for entry in self.entries)

    @property
    def num_prefill_tokens(self) -> int:
        """P: prefill rows among T."""
        return sum(entry.num_prefill_tokens for entry in self.entries)

    @property
    def num_draft_tokens(self) -> int:
        """Drafts present."""
        return sum(entry.num_draft_tokens for entry in self.entries)

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache of the requests that sample, before this step."""
        return sum(entry.first_position for entry in self.entries if entry.samples)
