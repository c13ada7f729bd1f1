"""Rotary position embedding in plain torch."""

from __future__ import annotations

import torch


def rope(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    """See specsched_kernels.rope."""
    cos, sin = cos_sin[positions][:, None, :].chunk(2, dim=-1)
    for heads in (query, key):
        first, second = heads.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads.copy_(rotated)
