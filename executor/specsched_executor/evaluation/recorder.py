"""A drafter that notes its confidences and what became of its drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import Drafter, DraftInput, DraftOutput

__all__ = ["Outcomes", "RecordingDrafter"]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One row per request and step in which a draft was asked for, n rows, in order.

    seed: int64 [n], of the request. history_tokens: int64 [n], tokens it had when drafting.
    confidence: float64 [n, k], NaN where there was no draft. num_verified, num_accepted: int64 [n],
    0 where the drafter had nothing to offer.
    """

    seed: npt.NDArray[np.int64]
    history_tokens: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    num_verified: npt.NDArray[np.int64]
    num_accepted: npt.NDArray[np.int64]


class RecordingDrafter:
    """Passes everything on to another drafter. Its requests are told apart by their seeds."""

    def __init__(self, drafter: Drafter, max_draft_tokens: int) -> None:
        self._drafter = drafter
        self._max_draft_tokens = max_draft_tokens
        self._drafted: dict[tuple[int, int], tuple[int, int, list[float]]] = {}
        self._rows: list[tuple[int, int, list[float], int, int]] = []

    @property
    def name(self) -> str:
        """Of the drafter that is recorded."""
        return self._drafter.name

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Of the drafter that is recorded."""
        return self._drafter.feature_layers

    def draft(self, inputs: DraftInput) -> DraftOutput:
        """Draft and remember the confidences, and who got no draft."""
        output = self._drafter.draft(inputs)
        keys = zip(inputs.slot_ids.tolist(), inputs.generations.tolist(), strict=True)
        confidence, wanted = output.confidence.double().tolist(), inputs.max_draft_tokens.tolist()
        for row, key in enumerate(keys):
            seed, history = int(inputs.seeds[row]), len(inputs.histories[row])
            if output.num_draft_tokens[row]:
                self._drafted[key] = (seed, history, confidence[row])
            elif wanted[row]:
                self._rows.append((seed, history, [], 0, 0))
        return output

    def observe(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        num_verified: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Note the outcomes."""
        self._drafter.observe(slot_ids, generations, num_verified, num_accepted)
        columns = (slot_ids, generations, num_verified, num_accepted)
        for slot, generation, verified, accepted in torch.stack(
            [column.long() for column in columns], dim=1
        ).tolist():
            drafted = self._drafted.pop((slot, generation), None)
            if drafted is not None and verified:
                self._rows.append((*drafted, verified, accepted))

    def release(self, slot_id: int) -> None:
        """Pass on."""
        self._drafter.release(slot_id)

    def outcomes(self) -> Outcomes:
        """All that was noted."""
        seed, history, confidence, verified, accepted = (
            zip(*self._rows, strict=True) if self._rows else ((),) * 5
        )
        k = self._max_draft_tokens
        padded = np.full((len(self._rows), k), np.nan)
        for row, values in zip(padded, confidence, strict=True):
            row[: len(values)] = values[:k]
        return Outcomes(
            np.array(seed, dtype=np.int64),
            np.array(history, dtype=np.int64),
            padded,
            np.array(verified, dtype=np.int64),
            np.array(accepted, dtype=np.int64),
        )
