"""Takes a step's new tokens into the columns, by compiled passes over its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.engine.target_pass import Integers
from specsched_executor.progress import Progress

__all__ = ["Fates", "NewTokens"]


@dataclass(frozen=True, slots=True)
class Fates:
    """goes_on, ends: bool [R], neither where it has to be looked at apart; num_kept: of the new
    tokens, those up to the end, int64 [R].
    """

    goes_on: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    num_kept: npt.NDArray[np.int64]


class NewTokens:
    """Works on the columns of one engine; compiles on construction. One thread.

    Of R requests: slots; token_ids [R, n], of which the first num_new [R] are new.
    """

    def __init__(self, columns: SlotColumns) -> None:
        self._columns = columns
        nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, 1), dtype=np.int64)
        self.judge(nobody, nothing, nobody)
        self.take_in(nobody, nothing, nobody, nobody, nobody)

    def judge(self, slots: Slots, token_ids: Integers, num_new: Integers) -> Fates:
        """What becomes of the requests with their new tokens."""
        columns, num_requests = self._columns, len(slots)
        fates = Fates(
            np.zeros(num_requests, dtype=np.bool_),
            np.zeros(num_requests, dtype=np.bool_),
            np.zeros(num_requests, dtype=np.int64),
        )
        _judge(
            slots,
            _as_int64(token_ids),
            _as_int64(num_new),
            columns.num_tokens,
            columns.max_total_tokens,
            columns.min_tokens,
            columns.stop_token_ids,
            columns.is_apart,
            fates.goes_on,
            fates.ends,
            fates.num_kept,
        )
        return fates

    def take_in(
        self,
        slots: Slots,
        token_ids: Integers,
        num_new: Integers,
        num_verified: Integers,
        num_accepted: Integers,
    ) -> Progress:
        """Add the new tokens, and what became of the step's drafts, [R]; returns what to tell."""
        columns, num_new = self._columns, _as_int64(num_new)
        progress = Progress.empty(len(slots), int(num_new.sum()))
        _take_in(
            slots,
            _as_int64(token_ids),
            num_new,
            _as_int64(num_verified),
            _as_int64(num_accepted),
            columns.num_tokens,
            columns.token_ids,
            columns.num_verified_tokens,
            columns.num_accepted_tokens,
            columns.sink_key,
            columns.output_index,
            progress.numbers,
            progress.token_ids,
        )
        return progress


def _as_int64(values: Integers) -> npt.NDArray[np.int64]:
    """Of one type and layout, so that none is compiled for in the middle of a step."""
    return np.ascontiguousarray(values, dtype=np.int64)


@njit(cache=True)
def _judge(  # noqa: PLR0917 -- the requests, one column after the other, the answers
    slots: Any,
    token_ids: Any,
    num_new: Any,
    num_tokens: Any,
    max_total: Any,
    min_tokens: Any,
    stop_token_ids: Any,
    is_apart: Any,
    goes_on: Any,
    ends: Any,
    num_kept: Any,
) -> None:
    num_stops = stop_token_ids.shape[1]
    for row in range(len(slots)):
        slot = slots[row]
        if is_apart[slot]:
            continue
        num_kept[row] = num_new[row]
        for place in range(num_new[row]):
            num_reached = num_tokens[slot] + place + 1
            is_last = num_reached >= max_total[slot]
            if num_reached >= min_tokens[slot]:
                for index in range(num_stops):
                    is_last |= token_ids[row, place] == stop_token_ids[slot, index]
            if is_last:
                ends[row] = True
                num_kept[row] = place + 1
                break
        goes_on[row] = not ends[row]


@njit(cache=True)
def _take_in(  # noqa: PLR0917 -- the requests, one column after the other, what to tell
    slots: Any,
    token_ids: Any,
    num_new: Any,
    num_verified: Any,
    num_accepted: Any,
    num_tokens: Any,
    known_token_ids: Any,
    num_verified_so_far: Any,
    num_accepted_so_far: Any,
    sink_key: Any,
    output_index: Any,
    numbers: Any,
    new_token_ids: Any,
) -> None:
    num_told = 0
    for row in range(len(slots)):
        slot = slots[row]
        for place in range(num_new[row]):
            known_token_ids[slot, num_tokens[slot] + place] = token_ids[row, place]
            new_token_ids[num_told] = token_ids[row, place]
            num_told += 1
        num_tokens[slot] += num_new[row]
        num_verified_so_far[slot] += num_verified[row]
        num_accepted_so_far[slot] += num_accepted[row]
        numbers[0, row] = sink_key[slot]
        numbers[1, row] = output_index[slot]
        numbers[2, row] = num_new[row]
        numbers[3, row] = num_verified_so_far[slot]
        numbers[4, row] = num_accepted_so_far[slot]
