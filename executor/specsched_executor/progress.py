"""What a step brings many outputs at once, as arrays and not as an object for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Progress", "merged"]

_KEY, _INDEX, _NUM_NEW = 0, 1, 2
_NUM_NUMBERS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of R outputs.

    numbers: int64 [5, R]: key of the request, index of the output, new tokens, drafts verified and
    accepted so far. token_ids: [sum of the new tokens], output after output. Two arrays only, since
    they are sent to another process at every step.
    """

    numbers: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.integer[Any]]

    @classmethod
    def empty(cls, num_outputs: int, num_tokens: int) -> Progress:
        """Room for as many, to be filled."""
        numbers = np.empty((_NUM_NUMBERS, num_outputs), dtype=np.int64)
        return cls(numbers, np.empty(num_tokens, dtype=np.int32))

    def packed(self) -> tuple[bytes, bytes]:
        """For another process."""
        return self.numbers.tobytes(), self.token_ids.astype(np.int32, copy=False).tobytes()

    @classmethod
    def unpacked(cls, numbers: bytes, token_ids: bytes) -> Progress:
        """What was packed there; not to be written to."""
        columns = np.frombuffer(numbers, dtype=np.int64).reshape(_NUM_NUMBERS, -1)
        return cls(columns, np.frombuffer(token_ids, dtype=np.int32))

    def split(self, firsts: Sequence[int]) -> list[Progress]:
        """Parts that begin with these outputs, in rising order, the first with output 0."""
        first_tokens = np.cumsum(self.numbers[_NUM_NEW])[np.array(firsts[1:], dtype=np.int64) - 1]
        outputs = itertools.pairwise([*firsts, None])
        tokens = itertools.pairwise([0, *first_tokens.tolist(), None])
        return [
            Progress(self.numbers[:, begin:end], self.token_ids[first:last])
            for (begin, end), (first, last) in zip(outputs, tokens, strict=True)
        ]

    def rows(self) -> Iterator[tuple[int, int, list[int], int, int]]:
        """Key, index, new tokens, drafts verified and accepted of one output after the other."""
        tokens, first = self.token_ids.tolist(), 0
        for key, index, num_new, num_verified, num_accepted in self.numbers.T.tolist():
            yield key, index, tokens[first : first + num_new], num_verified, num_accepted
            first += num_new


def merged(steps: Sequence[Progress]) -> Progress:
    """One step after the other as one: of each output all tokens, in order, and the newest counts.

    At least one step, each of at least one output; these may come out in another order.
    """
    if len(steps) == 1:
        return steps[0]
    numbers = np.concatenate([step.numbers for step in steps], axis=1)
    token_ids = np.concatenate([step.token_ids for step in steps])
    order = np.lexsort((numbers[_INDEX], numbers[_KEY]))  # stable: steps stay in order
    first_tokens = np.cumsum(numbers[_NUM_NEW]) - numbers[_NUM_NEW]
    first_tokens, numbers = first_tokens[order], numbers[:, order]
    num_new = numbers[_NUM_NEW]
    moved = np.repeat(first_tokens - (np.cumsum(num_new) - num_new), num_new)
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (np.diff(numbers[:_NUM_NEW]) != 0).any(axis=0)
    firsts = np.flatnonzero(begins)
    newest = numbers[:, np.append(firsts[1:], len(order)) - 1]
    newest[_NUM_NEW] = np.add.reduceat(num_new, firsts)
    return Progress(newest, token_ids[moved + np.arange(len(token_ids))])
