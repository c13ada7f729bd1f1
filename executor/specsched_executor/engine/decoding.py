"""Which running requests decode in the step to come, found by one compiled pass over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from specsched_protocol.compiling import njit

from specsched_executor.engine.slot_columns import SlotColumns, Slots, num_useful_drafts

__all__ = ["Decoding", "DecodingFinder"]

_useful = njit(cache=True)(num_useful_drafts)


@dataclass(frozen=True, slots=True)
class Decoding:
    """Requests that have an anchor to run, int64 [R]; no launched step surely ends them.

    max_num_tokens: known, and those that launched steps may commit. num_drafts: present and useful.
    num_filling: how many of the requests that were looked at are inside a prefill.
    """

    slots: Slots
    generations: Slots
    max_num_tokens: Slots
    num_drafts: Slots
    num_filling: int


class DecodingFinder:
    """Asks the columns of one engine; compiles on construction. One thread."""

    def __init__(self, columns: SlotColumns) -> None:
        self._columns = columns
        self._found = np.zeros((4, columns.num_slots), dtype=np.int64)
        self.find(np.zeros(0, dtype=np.int64))

    def find(self, slots: Slots) -> Decoding:
        """Those of the running requests in these slots, in the same order."""
        columns = self._columns
        num_found, num_filling = _find(
            slots,
            columns.generation,
            columns.num_tokens,
            columns.num_cached_tokens,
            columns.min_in_flight_tokens,
            columns.max_in_flight_tokens,
            columns.max_total_tokens,
            columns.num_draft_tokens,
            columns.max_context_tokens,
            self._found,
        )
        found, generations, max_num_tokens, num_drafts = self._found[:, :num_found].copy()
        return Decoding(found, generations, max_num_tokens, num_drafts, num_filling)


@njit(cache=True)
def _find(  # noqa: PLR0917 -- the slots, one column after the other
    slots: Any,
    generation: Any,
    num_tokens: Any,
    num_cached: Any,
    min_in_flight: Any,
    max_in_flight: Any,
    max_total: Any,
    num_drafts: Any,
    max_context: Any,
    found: Any,
) -> Any:
    num_found = num_filling = 0
    for slot in slots:
        known, most = num_tokens[slot], max_in_flight[slot]
        num_pending = known - num_cached[slot] + (most > 0)
        num_filling += num_pending > 1
        surely_ends = most > 0 and known + 1 >= max_total[slot]
        if num_pending != 1 or surely_ends:
            continue
        useful = _useful(known, min_in_flight[slot], most, max_total[slot], max_context)
        found[0, num_found] = slot
        found[1, num_found] = generation[slot]
        found[2, num_found] = known + most
        found[3, num_found] = min(num_drafts[slot], useful)
        num_found += 1
    return num_found, num_filling
