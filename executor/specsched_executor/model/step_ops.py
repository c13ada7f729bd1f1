"""What a forward pass with grouped-query attention does beside its other products, on torch.

The portable implementation of `StepOps`; `cpu_step_ops` is the fast one for CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from specsched_kernels.paged_attention import paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv

from specsched_executor.core import ModelBatch
from specsched_executor.model.grouped_weights import GroupedWeights
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.row_ops import TorchRowOps


class GroupedShape(Protocol):
    """What a forward pass has to know of layers with grouped-query attention."""

    @property
    def num_layers(self) -> int:
        """Each has its own part of the cache."""

    @property
    def num_heads(self) -> int:
        """Of queries: a multiple of num_kv_heads."""

    @property
    def num_kv_heads(self) -> int:
        """Of keys and values."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward part."""

    @property
    def rms_norm_eps(self) -> float:
        """Of all norms."""


@dataclass(frozen=True, slots=True)
class GroupedLayers:
    """Facts of some layers, their attention weights, and their table of angles.

    cos_sin: float32 [max_context_tokens, head_dim]. dtype: of the weights.
    """

    config: GroupedShape
    weights: tuple[GroupedWeights, ...]
    cos_sin: torch.Tensor
    dtype: torch.dtype


class TorchStepOps(TorchRowOps):
    """StepOps for any shape and device."""

    def __init__(
        self,
        layers: GroupedLayers,
        batch: ModelBatch,
        cache: PagedKvCache,
        residual: torch.Tensor,
        *,
        is_causal: bool = True,
    ) -> None:
        super().__init__(residual, layers.config.rms_norm_eps)
        self._config = layers.config
        self._is_causal = is_causal
        self._weights = layers.weights
        self._cos_sin = layers.cos_sin
        self._batch = batch
        self._cache = cache

    def attend(self, layer: int, normed: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        config, weights, batch = self._config, self._weights[layer], self._batch
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        heads = weights.qkv(normed).view(-1, sum(counts), config.head_dim)
        query, key, value = torch.split(heads, counts, dim=1)
        if weights.query_norm is not None and weights.key_norm is not None:
            query = rms_norm(query, weights.query_norm, config.rms_norm_eps)
            key = rms_norm(key, weights.key_norm, config.rms_norm_eps)
        rope(query, key, batch.positions, self._cos_sin)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        write_kv(key, value, batch.slot_mapping, keys, values)
        attended = paged_attention(
            query,
            keys,
            values,
            batch.block_tables,
            batch.query_start_loc,
            batch.context_lens,
            scale=config.head_dim**-0.5,
            max_query_len=batch.max_query_len,
            max_context_tokens=batch.max_context_tokens,
            is_causal=self._is_causal,
        )
        return weights.output(attended.flatten(1))
