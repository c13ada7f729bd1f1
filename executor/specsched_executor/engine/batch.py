"""What runs in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.slot_columns import Slots

__all__ = ["StepBatch"]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The requests of a step in batch order; ties between drafts are broken in this order.

    Of each request, [R]: slot_ids, generations int64; first_positions int64, of its first row;
    num_base_rows int64, its anchor or prefill rows, followed by at most num_draft_tokens int64
    drafts (those present, trimmed to KV room and useful length); samples bool, False inside a
    chunked prefill; teaches bool, False where what is accepted does not follow from
    the target's and the drafter's own distributions. max_draft_rows: rows left for drafts within
    max_num_batched_tokens.

    Over all of them: num_other_tokens (T), rows that are not drafts; num_prefill_tokens (P) among
    those; num_sampling (N); num_drafts, drafts present; context_tokens, tokens in the cache of the
    requests that sample, before this step.
    """

    step_id: int
    requests: Sequence[ActiveRequest]
    slot_ids: Slots
    generations: Slots
    first_positions: Slots
    num_base_rows: Slots
    num_draft_tokens: Slots
    samples: npt.NDArray[np.bool_]
    teaches: npt.NDArray[np.bool_]
    max_draft_rows: int
    num_other_tokens: int = field(init=False)
    num_sampling: int = field(init=False)
    num_drafts: int = field(init=False)
    context_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, int(value))

        put("num_other_tokens", self.num_base_rows.sum())
        put("num_sampling", np.count_nonzero(self.samples))
        put("num_drafts", self.num_draft_tokens.sum())
        put("context_tokens", self.first_positions @ self.samples)

    @property
    def sampling_rows(self) -> slice | npt.NDArray[np.bool_]:
        """What picks the requests that sample out of an array [R]: mostly all."""
        return slice(None) if self.num_sampling == len(self.slot_ids) else self.samples

    @property
    def num_prefill_tokens(self) -> int:
        """P: base rows that are no anchor."""
        return self.num_other_tokens - self.num_sampling
