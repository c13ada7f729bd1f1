"""What a forward pass does to its rows between matrix products and attention."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from specsched_kernels.add_rms_norm import add_rms_norm
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.silu_and_mul import silu_and_mul

__all__ = ["DeviceRowOps", "RowOps", "TorchRowOps", "row_ops"]


class RowOps(Protocol):
    """The part of StepOps that any attention shares."""

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See StepOps."""

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See StepOps."""


class TorchRowOps:
    """For any shape and device; activations are float32."""

    def __init__(self, residual: torch.Tensor, eps: float) -> None:
        self._residual = residual
        self._eps = eps

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See StepOps."""
        if delta is not None:
            self._residual += delta
        return rms_norm(self._residual, norm, self._eps)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class DeviceRowOps:
    """On a device, one launch each; activations have the dtype of the weights."""

    def __init__(self, residual: torch.Tensor, eps: float, dtype: torch.dtype) -> None:
        self._residual = residual
        self._eps = eps
        self._dtype = dtype

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See StepOps."""
        out = torch.empty_like(self._residual, dtype=self._dtype)
        return add_rms_norm(self._residual, delta, norm, self._eps, out=out)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        return silu_and_mul(gate_up)


def row_ops(residual: torch.Tensor, eps: float, dtype: torch.dtype) -> RowOps:
    """Those for where the residual stream is; dtype: of the weights."""
    if residual.device.type == "cpu":
        return TorchRowOps(residual, eps)
    return DeviceRowOps(residual, eps, dtype)
