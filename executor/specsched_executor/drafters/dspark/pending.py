"""Context rows whose features were taken while nothing was drafted, kept until something is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import PAD_SLOT

__all__ = ["NewRows", "PendingRows"]


@dataclass(frozen=True, slots=True)
class NewRows:
    """Where new context rows go: positions, slots int64 [n]; slot PAD_SLOT for those not kept."""

    positions: torch.Tensor
    slots: torch.Tensor


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Step:
    owners: Ints  # slot ids of the requests, [n]
    positions: Ints
    slots: Ints
    features: Mapping[int, torch.Tensor]


class PendingRows:
    """Rows of some steps, in order. max_rows: of all requests; no place may occur twice in them."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._steps: list[_Step] = []
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def add(
        self, owners: Ints, positions: Ints, slots: Ints, features: Mapping[int, torch.Tensor]
    ) -> None:
        """Keep the rows of a step; features: layer -> [n, hidden], not to be changed any more."""
        self._steps.append(_Step(owners, positions, slots, features))
        self._num_rows += len(owners)

    def drop(self, slot_id: int) -> None:
        """A request is gone: its places may be another's by the time these rows are written."""
        for step in self._steps:
            step.slots[step.owners == slot_id] = PAD_SLOT

    def take(self, layers: Sequence[int]) -> tuple[torch.Tensor, NewRows]:
        """(features [n, layers * hidden], where they go) of all rows, which are then forgotten."""
        steps, self._steps, self._num_rows = self._steps, [], 0
        features = [torch.cat([step.features[layer] for step in steps]) for layer in layers]
        positions = torch.from_numpy(np.concatenate([step.positions for step in steps]))
        slots = torch.from_numpy(np.concatenate([step.slots for step in steps]))
        return torch.cat(features, dim=-1), NewRows(positions, slots)
