"""Root-mean-square norm."""

from __future__ import annotations

import numpy as np
import torch

from specsched_kernels.cpu import rows as kernel
from specsched_kernels.cpu.layout import is_cpu_float
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
    if x.is_cuda:
        from specsched_kernels.triton.rms_norm import rms_norm as launch

        launch(x, weight, eps, out=out)
        return out
    if not is_cpu_float(x, weight, out) or not out.is_contiguous():
        return reference.rms_norm(x, weight, eps, out=out)
    rows, target = x.reshape(-1, x.shape[-1]).numpy(), out.view(-1, x.shape[-1]).numpy()
    kernel.rms_norm(rows, weight.numpy(), np.float32(eps), target, 0, len(rows))
    return out
