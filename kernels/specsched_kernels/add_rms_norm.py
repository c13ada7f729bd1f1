"""Residual addition and root-mean-square norm in one pass."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import add_rms_norm as reference

__all__ = ["add_rms_norm"]


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """residual += delta, in place; out = residual / sqrt(mean(residual^2) + eps) * weight.

    residual: float32 [n, d]; delta: any float [n, d], None for nothing to add; weight: [d]; out:
    any float [n, d], also returned. Raises ValueError for another shape.
    """
    shape, device = tuple(residual.shape), residual.device
    floats = (torch.float32, torch.bfloat16, torch.float16)
    check_tensor("residual", residual, shape, torch.float32, device)
    check_tensor("out", out, shape, floats, device)
    check_tensor("weight", weight, shape[-1:], floats, device)
    if delta is not None:
        check_tensor("delta", delta, shape, floats, device)
    if residual.is_cuda:
        from specsched_kernels.triton.add_rms_norm import add_rms_norm as launch

        launch(residual, delta, weight, eps, out)
    else:
        reference.add_rms_norm(residual, delta, weight, eps, out)
    return out
