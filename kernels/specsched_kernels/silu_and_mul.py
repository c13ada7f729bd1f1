"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import silu_and_mul as reference

__all__ = ["silu_and_mul"]


def silu_and_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up of gate_up = [gate | up]: any float [n, 2 d] -> [n, d], float32 inside.

    Raises ValueError for another shape of `out`.
    """
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
    check_tensor("gate_up", gate_up, (num_rows, 2 * width), gate_up.dtype, out.device)
    check_tensor("out", out, (num_rows, width), out.dtype, gate_up.device)
    if gate_up.is_cuda:
        from specsched_kernels.triton.silu_and_mul import silu_and_mul as launch

        launch(gate_up, out)
    else:
        reference.silu_and_mul(gate_up, out)
    return out
