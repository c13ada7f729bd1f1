"""Rotary position embedding."""

from __future__ import annotations

import torch

from specsched_kernels.cpu import rows as kernel
from specsched_kernels.cpu.layout import is_cpu_float
from specsched_kernels.reference import rope as reference

__all__ = ["rope"]


def rope(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    """Rotate pairs (i, i + D/2) of every head by the angle of the row's position, in place.

    query: [n, H, D]; key: [n, Hkv, D], strided over rows is fine. positions: int64 [n].
    cos_sin: float32 [max_positions, D], the cosines of D/2 angles, then their sines.
    """
    if query.is_cuda:
        from specsched_kernels.triton.rope import rope as launch

        launch(query, key, positions, cos_sin)
        return
    if not is_cpu_float(query, key, cos_sin):
        reference.rope(query, key, positions, cos_sin)
        return
    angles, rows = cos_sin.numpy(), positions.numpy()
    for heads in (query.numpy(), key.numpy()):
        kernel.rope(heads, heads.shape[1], rows, angles, 0, len(heads))
