"""Losses of drafted distributions against the target's, with their gradient, in one pass."""

from __future__ import annotations

import torch

from specsched_kernels.reference import draft_loss as reference

__all__ = ["draft_loss"]


def draft_loss(
    draft_logits: torch.Tensor,
    target_logits: torch.Tensor,
    labels: torch.Tensor,
    ce_weights: torch.Tensor,
    l1_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross entropy -log q[label] and L1 distance sum |q - p| per row, and their gradient.

    draft_logits, target_logits: [n, V] of q and p, float16 on CUDA, any float on a CPU; labels:
    int64 [n]; ce_weights, l1_weights: float32 [n]. Returns float32 [n], float32 [n] and bfloat16
    [n, V], the gradient by draft_logits of sum(ce_weights * ce + l1_weights * l1):
    ce_weight (q - onehot) + l1_weight q (s - sum q s), s = sign(q - p).

    The distance gives the acceptance rate of drafts from q, 1 - l1 / 2 (Leviathan et al., 2023,
    arXiv 2211.17192). On CUDA the gradient takes the memory of draft_logits, whose values are lost.
    """
    if draft_logits.is_cuda:
        from specsched_kernels.triton.draft_loss import draft_loss as launch

        return launch(draft_logits, target_logits, labels, ce_weights, l1_weights)
    return reference.draft_loss(draft_logits, target_logits, labels, ce_weights, l1_weights)
