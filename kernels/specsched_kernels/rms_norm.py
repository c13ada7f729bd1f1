"""Root-mean-square norm."""

from __future__ import annotations

import torch

from specsched_kernels.reference import rms_norm as reference

__all__ = ["rms_norm"]


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, accumulated in float32.

    x: [..., d]; weight: [d]; out: like x, may be x itself. Returns out.
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return reference.rms_norm(x, weight, eps, out=out)
