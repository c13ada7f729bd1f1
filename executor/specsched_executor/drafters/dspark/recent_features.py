"""The target's hidden states of each slot's last context tokens, until a draft reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Ints", "RecentFeatures"]

Ints = npt.NDArray[np.int64]


class RecentFeatures:
    """A ring of `num_tokens` rows per slot: the token at position p is in place p mod num_tokens.

    layers: of the target; a row is their outputs of size hidden_size side by side, in `dtype`, that
    of the product that reads them. What is never written takes no memory.
    """

    def __init__(
        self,
        num_slots: int,
        num_tokens: int,
        layers: Sequence[int],
        hidden_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_tokens = num_tokens
        self._layers = tuple(layers)
        self._rows = torch.empty(num_slots * num_tokens, len(layers) * hidden_size, dtype=dtype)

    def side_by_side(self, features: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """[n, layers * hidden] in the ring's dtype, of target layer -> [n, hidden]."""
        of_layers = [features[layer] for layer in self._layers]
        return torch.cat(of_layers, dim=-1).to(self._rows.dtype)

    def put(self, slot_ids: Ints, positions: Ints, rows: torch.Tensor) -> None:
        """Keep rows [n, layers * hidden], one each for tokens of slots at positions, [n].

        No two of them may have one place.
        """
        self._rows.index_copy_(0, self._places(slot_ids, positions), rows)

    def take(self, slot_ids: Ints, positions: Ints) -> torch.Tensor:
        """[n, layers * hidden] of tokens of slots at positions, [n], as they were put."""
        return self._rows[self._places(slot_ids, positions)]

    def _places(self, slot_ids: Ints, positions: Ints) -> torch.Tensor:
        return torch.from_numpy(slot_ids * self.num_tokens + positions % self.num_tokens)
