"""Drafts of a drafter on the host, brought to the device."""

from __future__ import annotations

import torch
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.slot_tables import SlotTables, store_drafts

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.core import DraftOutput
from specsched_executor.device.drafter import ContextRows, DraftJob
from specsched_executor.engine.drafts import DraftTable

__all__ = ["FedDrafter", "MirroredDraftTable"]


class FedDrafter:
    """The device's view of a drafter on the host: it is given drafts, never makes any.

    `distribution` is there for a stochastic one only.
    """

    feature_layers: tuple[int, ...] = ()
    is_idle = True

    def __init__(self, name: str, distribution: DraftDistribution | None = None) -> None:
        self.name = name
        self.distribution = distribution

    def take_in(self, rows: ContextRows) -> None:
        """The host has the tokens."""

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        """Never asked."""
        raise NotImplementedError(f"{self.name} drafts on the host, not {job.num_tokens} tokens")


class MirroredDraftTable(DraftTable):
    """The newest drafts of every slot, on the device too. Without a store a step has none there:
    committing a step takes away the drafts that it brought."""

    def __init__(self, tables: SlotTables, fed: FedDrafter) -> None:
        num_slots, max_draft_tokens = tables.draft_token_ids.shape
        super().__init__(num_slots, max_draft_tokens)
        self._tables = tables
        self._fed = fed

    @torch.inference_mode()
    def store(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        output: DraftOutput,
        is_greedy: torch.Tensor | None = None,
        calibration: ConfidenceCalibration | None = None,
    ) -> None:
        """See DraftTable; what drafts are ranked by goes to the device."""
        super().store(slot_ids, generations, output, is_greedy, calibration)
        device = self._tables.num_tokens.device
        num_tokens = min(output.token_ids.shape[1], self.max_draft_tokens)
        confidence = self.confidence(slot_ids, generations)[:, :num_tokens]
        slots = slot_ids.to(device)
        store_drafts(
            self._tables,
            slots,
            generations.to(device),
            output.num_draft_tokens.to(device, torch.int32),
            output.token_ids[:, :num_tokens].contiguous().to(device),
            confidence.contiguous().to(device),
        )
        if output.distribution is not None and self._fed.distribution is not None:
            self._fed.distribution.store(slots, output.distribution[:, :num_tokens])
