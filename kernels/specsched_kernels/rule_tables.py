"""Rules on logits by slot, in one table, so that one copy brings those of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from specsched_kernels._checks import check_tensor

__all__ = ["LogitRuleSizes", "LogitRuleTables", "LogitRules"]

_NUM_FACTORS: Final = 3
_NUM_SEEN, _NUM_BIASES, _NUM_STOPS, _MIN_POSITION = range(_NUM_FACTORS, _NUM_FACTORS + 4)
_HEADER_WORDS: Final = 8


@dataclass(frozen=True, slots=True)
class LogitRuleSizes:
    """Most distinct tokens of a request, tokens that are biased, and ids that end its output."""

    max_seen: int
    max_biases: int
    max_stops: int

    @property
    def stops_begin(self) -> int:
        """Word of a slot's row at which its ends begin."""
        return _HEADER_WORDS

    @property
    def bias_tokens_begin(self) -> int:
        """Likewise the tokens that are biased."""
        return self.stops_begin + self.max_stops

    @property
    def biases_begin(self) -> int:
        """Likewise their biases."""
        return self.bias_tokens_begin + self.max_biases

    @property
    def seen_begin(self) -> int:
        """Likewise the seen tokens, the last since there are many of them or none."""
        return self.biases_begin + self.max_biases

    @property
    def row_width(self) -> int:
        """Words of 32 bits in a row."""
        return self.seen_begin + 2 * self.max_seen


class LogitRuleTables:
    """Rules of the request in each of S slots, and the tokens that penalties look at.

    rows: int32 [S, row_width]; the others are views of it. factors: float32 [S, 3], penalties by
    repetition, frequency and presence. seen: int32 [S, C, 2], the distinct tokens of prompt and
    output and how often each is in the output, of which the first num_seen, int32 [S], count; 0
    where nothing is penalised. bias_token_ids int32 [S, B], biases float32 [S, B]: the first
    num_biases, int32 [S], are added. stop_token_ids: int32 [S, E], the first num_stops, int32 [S],
    are impossible at positions below min_positions, int32 [S].
    """

    def __init__(self, rows: torch.Tensor, sizes: LogitRuleSizes) -> None:
        """Raises ValueError for rows of another width or dtype."""
        check_tensor("rows", rows, (len(rows), sizes.row_width), torch.int32, rows.device)
        self.rows, self.sizes = rows, sizes
        floats = rows.view(torch.float32)
        self.factors = floats[:, :_NUM_FACTORS]
        self.num_seen, self.num_biases = rows[:, _NUM_SEEN], rows[:, _NUM_BIASES]
        self.num_stops, self.min_positions = rows[:, _NUM_STOPS], rows[:, _MIN_POSITION]
        self.stop_token_ids = rows[:, sizes.stops_begin : sizes.bias_tokens_begin]
        self.bias_token_ids = rows[:, sizes.bias_tokens_begin : sizes.biases_begin]
        self.biases = floats[:, sizes.biases_begin : sizes.seen_begin]
        self.seen = rows[:, sizes.seen_begin :].view(len(rows), sizes.max_seen, 2)

    @classmethod
    def empty(
        cls, num_slots: int, sizes: LogitRuleSizes, device: torch.device | str = "cpu"
    ) -> LogitRuleTables:
        """Tables without rules."""
        shape = (num_slots, sizes.row_width)
        return cls(torch.zeros(shape, dtype=torch.int32, device=device), sizes)

    def fill(self, slot_id: int, rules: LogitRules) -> None:
        """Put rules into a slot, in stream order; what was there is gone."""
        words = rules.packed(self.sizes)
        host = torch.empty(len(words), dtype=torch.int32, pin_memory=self.rows.is_cuda)
        host.numpy()[:] = words
        self.rows[slot_id, : len(words)].copy_(host, non_blocking=True)


@dataclass(frozen=True, slots=True)
class LogitRules:
    """Rules of one request on the host, as `LogitRuleTables` has them; seen: int32 [n, 2]."""

    factors: tuple[float, float, float]
    seen: npt.NDArray[np.int32]
    biases: Sequence[tuple[int, float]]
    stop_token_ids: Sequence[int]
    min_position: int

    def packed(self, sizes: LogitRuleSizes) -> npt.NDArray[np.int32]:
        """The first words of a row, up to the last seen token.

        Raises ValueError for more than there is room for.
        """
        counts = {
            "seen tokens": (len(self.seen), sizes.max_seen),
            "biases": (len(self.biases), sizes.max_biases),
            "stop_token_ids": (len(self.stop_token_ids), sizes.max_stops),
        }
        for name, (count, most) in counts.items():
            if count > most:
                raise ValueError(f"{count} {name}; accepted: at most {most}")
        words = np.zeros(sizes.seen_begin + 2 * len(self.seen), dtype=np.int32)
        floats = words.view(np.float32)
        floats[:_NUM_FACTORS] = self.factors
        words[_NUM_SEEN], words[_NUM_BIASES] = len(self.seen), len(self.biases)
        words[_NUM_STOPS], words[_MIN_POSITION] = len(self.stop_token_ids), self.min_position
        words[sizes.stops_begin :][: len(self.stop_token_ids)] = self.stop_token_ids
        for index, (token_id, bias) in enumerate(self.biases):
            words[sizes.bias_tokens_begin + index] = token_id
            floats[sizes.biases_begin + index] = bias
        words[sizes.seen_begin :] = self.seen.ravel()
        return words
