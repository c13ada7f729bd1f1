"""Residual addition and norm in plain torch."""

from __future__ import annotations

import torch


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """See specsched_kernels.add_rms_norm."""
    if delta is not None:
        residual += delta
    scale = torch.rsqrt(residual.float().pow(2).mean(-1, keepdim=True) + eps)
    out.copy_(residual.float() * scale * weight.float())
