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
    """Rows of some steps, in order. max_rows: of all requests together.

    Of rows for one place the last one counts, as if all had been written in turn.
    """

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
        """(features [n, layers * hidden], where they go) of what is left to write of all rows,
        which are then forgotten."""
        steps, self._steps, self._num_rows = self._steps, [], 0
        slots = np.concatenate([step.slots for step in steps])
        positions = np.concatenate([step.positions for step in steps])
        features = [torch.cat([step.features[layer] for step in steps]) for layer in layers]
        rows = _last_of_each_place(slots)
        if len(rows) < len(slots):
            slots, positions = slots[rows], positions[rows]
            chosen = torch.from_numpy(rows)
            features = [each[chosen] for each in features]
        new = NewRows(torch.from_numpy(positions), torch.from_numpy(slots))
        return torch.cat(features, dim=-1), new


def _last_of_each_place(slots: Ints) -> Ints:
    """Indexes of the rows that are not overwritten by a later one, rising; none without a place."""
    places, from_end = np.unique(slots[::-1], return_index=True)
    return np.sort(len(slots) - 1 - from_end[places != PAD_SLOT])
