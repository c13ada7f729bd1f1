"""Tokens and confidences from a block's hidden states on a device; see drafters.dspark.heads."""

from __future__ import annotations

import torch
from specsched_kernels.draft_confidence import ConfidenceHead, draft_confidence
from specsched_kernels.draw_drafts import DraftDraws, MarkovBias, draw_drafts

from specsched_executor.drafters.dspark import DSparkCheckpoint
from specsched_executor.model.linear import Linear

__all__ = ["DeviceHeads"]


class DeviceHeads:
    """Markov head and confidence head over the output head; nothing is read back."""

    def __init__(self, checkpoint: DSparkCheckpoint, lm_head: Linear, like: torch.Tensor) -> None:
        tensors, device = checkpoint.tensors, like.device
        self._lm_head = lm_head
        self._markov = MarkovBias(
            codes=tensors["markov_head.markov_w1.weight"].to(device, like.dtype),
            weights=tensors["markov_head.markov_w2.weight"].to(device, like.dtype),
        )
        weight = tensors["confidence_head.proj.weight"].to(device).float()[0]
        hidden_size = checkpoint.config.hidden_size
        self._confidence = ConfidenceHead(
            hidden_weight=weight[:hidden_size].contiguous(),
            code_weight=weight[hidden_size:].contiguous(),
            bias=tensors["confidence_head.proj.bias"].to(device).float(),
        )

    def draft(
        self, hidden: torch.Tensor, anchor_ids: torch.Tensor, draws: DraftDraws | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [R, n] and confidences float32 [R, n]; hidden: [R, n, H]."""
        base = self._lm_head(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
        token_ids = draw_drafts(base, anchor_ids, self._markov, draws)
        confidence = draft_confidence(
            hidden, anchor_ids, token_ids, self._markov.codes, self._confidence
        )
        return token_ids, confidence
