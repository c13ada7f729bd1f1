"""No speculation: every request decodes one token a step."""

from __future__ import annotations

import torch

from specsched_executor.core import DraftInput, DraftOutput

__all__ = ["NoDrafter"]


class NoDrafter:
    """Drafts nothing."""

    name = "none"
    feature_layers: tuple[int, ...] = ()

    def draft(self, inputs: DraftInput) -> DraftOutput:
        """No draft for anyone."""
        num_requests = len(inputs.slot_ids)
        return DraftOutput(
            token_ids=torch.zeros(num_requests, 0, dtype=torch.int64),
            num_draft_tokens=torch.zeros(num_requests, dtype=torch.int64),
            confidence=torch.zeros(num_requests, 0),
        )

    def observe(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        num_verified: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Nothing to learn."""

    def release(self, slot_id: int) -> None:
        """Nothing to forget."""
