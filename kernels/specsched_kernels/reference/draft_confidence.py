"""Confidences of drafts in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specsched_kernels.draft_confidence import ConfidenceHead

__all__ = ["draft_confidence"]


def draft_confidence(  # noqa: PLR0917 -- as the public op has them
    hidden: torch.Tensor,
    anchor_ids: torch.Tensor,
    token_ids: torch.Tensor,
    codes: torch.Tensor,
    head: ConfidenceHead,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.draft_confidence`."""
    previous = torch.cat([anchor_ids[:, None], token_ids[:, :-1]], dim=1)
    score = hidden.float() @ head.hidden_weight + codes[previous].float() @ head.code_weight
    torch.sigmoid(score + head.bias, out=out)
