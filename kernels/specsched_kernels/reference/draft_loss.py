"""Losses of drafted distributions in plain torch."""

from __future__ import annotations

import torch


def draft_loss(
    draft_logits: torch.Tensor,
    target_logits: torch.Tensor,
    labels: torch.Tensor,
    ce_weights: torch.Tensor,
    l1_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See specsched_kernels.draft_loss."""
    log_draft = torch.log_softmax(draft_logits.float(), dim=-1)
    draft = log_draft.exp()
    difference = draft - torch.log_softmax(target_logits.float(), dim=-1).exp()
    cross_entropy = -log_draft.gather(1, labels[:, None])[:, 0]
    distance = difference.abs().sum(dim=-1)
    sign = difference.sign()
    mean_sign = (draft * sign).sum(dim=-1, keepdim=True)
    gradient = l1_weights[:, None] * draft * (sign - mean_sign) + ce_weights[:, None] * draft
    gradient.scatter_add_(1, labels[:, None], -ce_weights[:, None])
    return cross_entropy, distance, gradient.to(torch.bfloat16)
