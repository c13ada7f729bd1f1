"""The seam between a decoder and its attention: the cache, and the ops of a step."""

from __future__ import annotations

from typing import Protocol

import torch

from specsched_executor.core import KvCache, ModelBatch

__all__ = ["Attention", "StepOps"]


class StepOps(Protocol):
    """One forward pass; holds the residual stream, float32 [n, hidden_size].

    What a method returns is valid until the same method is called again.
    """

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """residual += delta; returns its RMS norm with weights `norm`, [n, hidden_size]."""

    def attend(self, layer: int, normed: torch.Tensor) -> torch.Tensor:
        """The attention part of a layer, [n, hidden_size] -> the same; writes to the cache."""

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: [n, 2 * intermediate] -> [n, intermediate]."""


class Attention(Protocol):
    """A kind of attention, with the weights of all layers."""

    def allocate_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """An empty cache; ValueError for sizes that it cannot have."""

    def block_bytes(self, block_size: int) -> int:
        """Memory of one block in all layers."""

    def begin(self, batch: ModelBatch, cache: KvCache, residual: torch.Tensor) -> StepOps:
        """A forward pass over `batch`; TypeError for a cache that it did not allocate."""
