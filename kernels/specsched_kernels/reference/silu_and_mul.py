"""Gated activation in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See specsched_kernels.silu_and_mul."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(F.silu(gate) * up)
