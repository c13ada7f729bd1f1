"""Positions of the largest logits in plain torch, by a stable sort."""

from __future__ import annotations

import torch

__all__ = ["select_topk"]


def select_topk(logits: torch.Tensor, context_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.select_topk`."""
    out.fill_(-1)
    for row, length in enumerate(context_lens.tolist()):
        num_tokens = min(length, logits.shape[1])
        if num_tokens <= 0:
            continue
        scores = logits[row, :num_tokens].nan_to_num(
            nan=float("-inf"), posinf=float("inf"), neginf=float("-inf")
        )
        order = scores.sort(descending=True, stable=True).indices[: out.shape[1]]
        out[row, : len(order)] = order.sort().values.to(torch.int32)
