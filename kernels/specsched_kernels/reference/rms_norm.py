"""Root-mean-square norm in plain torch."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor
) -> torch.Tensor:
    """See specsched_kernels.rms_norm."""
    wide = x.double() if x.dtype == torch.float64 else x.float()
    # Not rsqrt: its last elements, beyond whole vectors, get other bits than the rest.
    scaled = wide / (wide.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return out.copy_(scaled * weight)
