"""Products with a matrix of its own for each head."""

from __future__ import annotations

from typing import Protocol

import torch

from specsched_executor.model.linear import Linear, LinearFactory

__all__ = ["HeadLinear", "head_linear"]


class HeadLinear(Protocol):
    """A matrix product for each head."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, heads, in_features], any strides -> [n, heads, out_features], any strides."""


def head_linear(make_linear: LinearFactory, weights: torch.Tensor) -> HeadLinear:
    """weights: float32 [heads, out_features, in_features], any strides; they are copied.

    On a CPU a row gets the same bits among any number of rows, as of the linears it is made of.
    """
    if make_linear.device.type != "cpu":
        return _DeviceHeadLinear(weights.to(make_linear.dtype).contiguous())
    return _HeadByHead([make_linear(weight.contiguous(), copy=True) for weight in weights])


class _DeviceHeadLinear:
    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(0, 1), self._weights.transpose(1, 2)).transpose(0, 1)


class _HeadByHead:
    def __init__(self, linears: list[Linear]) -> None:
        self._linears = linears

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        products = [linear(x[:, head].contiguous()) for head, linear in enumerate(self._linears)]
        return torch.stack(products, dim=1)
