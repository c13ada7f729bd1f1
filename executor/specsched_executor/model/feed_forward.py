"""The feed-forward part of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from specsched_executor.model.linear import Linear
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["DenseFeedForward", "FeedForward", "Gate"]

Gate = Callable[[torch.Tensor], torch.Tensor]
"""silu(gate) * up: [n, 2 * intermediate] -> [n, intermediate]; see StepOps."""


class FeedForward(Protocol):
    """What follows attention in a layer."""

    def __call__(self, normed: torch.Tensor, gate: Gate) -> torch.Tensor:
        """[n, hidden_size] -> [n, hidden_size]."""


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """gate_up: [gate | up] in one product."""

    gate_up: Linear
    down: Linear

    @classmethod
    def read(
        cls, reader: TensorReader, prefix: str, hidden: int, inner: int, *, has_bias: bool = False
    ) -> DenseFeedForward:
        """The matrices named `prefix` and gate_proj, up_proj, down_proj."""
        gate_up = dict.fromkeys((f"{prefix}gate_proj", f"{prefix}up_proj"), inner)
        return cls(
            reader.fused(gate_up, hidden, has_bias=has_bias),
            reader.fused({f"{prefix}down_proj": hidden}, inner, has_bias=has_bias),
        )

    def __call__(self, normed: torch.Tensor, gate: Gate) -> torch.Tensor:
        """See FeedForward."""
        return self.down(gate(self.gate_up(normed)))
