"""What launched steps make of the columns before their outputs are processed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots

__all__ = ["TokensInFlight"]


class TokensInFlight:
    """Keeps the bounds of what launched steps commit; compiles on construction. One thread.

    bounds: the most tokens that each request of a step may commit, [R]; once the step's outputs
    are there, how many it did. A step goes through `launch`, `collect` and `finish`.
    """

    def __init__(self, columns: SlotColumns) -> None:
        self._columns = columns
        nobody = np.zeros(0, dtype=np.int64)
        samples = np.zeros(0, dtype=np.bool_)
        batch = StepBatch(0, (), nobody, nobody, nobody, nobody, nobody, samples, samples, 0)
        self.launch(batch, nobody, nobody)
        self.collect(batch, nobody, nobody)
        self.finish(batch, nobody)

    def launch(self, batch: StepBatch, bounds: Slots, draft_lens: Slots) -> None:
        """A step was launched, which makes draft_lens [R] drafts at its end."""
        columns = self._columns
        _launch(
            batch.slot_ids,
            batch.first_positions + batch.num_base_rows,
            batch.samples,
            bounds,
            draft_lens,
            columns.num_tokens,
            columns.num_cached_tokens,
            columns.min_in_flight_tokens,
            columns.max_in_flight_tokens,
            columns.is_anchor_on_device,
            columns.num_draft_tokens,
            columns.was_offered_draft,
        )

    def collect(
        self, batch: StepBatch, bounds: Slots, num_accepted: npt.NDArray[np.integer[Any]]
    ) -> None:
        """What the step committed is no longer bounded but known: num_accepted [R], and a token."""
        columns = self._columns
        _collect(
            batch.slot_ids,
            batch.generations,
            batch.samples,
            bounds,
            num_accepted.astype(np.int64),
            columns.generation,
            columns.min_in_flight_tokens,
            columns.max_in_flight_tokens,
        )

    def finish(self, batch: StepBatch, bounds: Slots) -> None:
        """The step is processed now."""
        columns = self._columns
        _finish(
            batch.slot_ids,
            batch.generations,
            bounds,
            columns.generation,
            columns.min_in_flight_tokens,
            columns.max_in_flight_tokens,
        )


@njit(cache=True)
def _launch(  # noqa: PLR0917 -- the requests, then one column after the other
    slots: Any,
    reached: Any,
    samples: Any,
    bounds: Any,
    draft_lens: Any,
    num_tokens: Any,
    num_cached: Any,
    min_in_flight: Any,
    max_in_flight: Any,
    is_anchor_on_device: Any,
    num_drafts: Any,
    was_offered_draft: Any,
) -> None:
    for row in range(len(slots)):
        slot = slots[row]
        if not samples[row]:
            num_cached[slot] = reached[row]
            continue
        num_cached[slot] = num_tokens[slot]
        min_in_flight[slot] += 1
        max_in_flight[slot] += bounds[row]
        is_anchor_on_device[slot] = True
        num_drafts[slot] = draft_lens[row]
        was_offered_draft[slot] = draft_lens[row] > 0


@njit(cache=True)
def _collect(  # noqa: PLR0917 -- the requests, then one column after the other
    slots: Any,
    generations: Any,
    samples: Any,
    bounds: Any,
    num_accepted: Any,
    generation: Any,
    min_in_flight: Any,
    max_in_flight: Any,
) -> None:
    for row in range(len(slots)):
        slot = slots[row]
        num_committed = num_accepted[row] + 1 if samples[row] else 0
        if generation[slot] == generations[row]:
            min_in_flight[slot] += num_committed - samples[row]
            max_in_flight[slot] += num_committed - bounds[row]
        bounds[row] = num_committed


@njit(cache=True)
def _finish(  # noqa: PLR0917 -- the requests, then one column after the other
    slots: Any,
    generations: Any,
    bounds: Any,
    generation: Any,
    min_in_flight: Any,
    max_in_flight: Any,
) -> None:
    for row in range(len(slots)):
        slot = slots[row]
        if generation[slot] == generations[row]:
            min_in_flight[slot] -= bounds[row]
            max_in_flight[slot] -= bounds[row]
