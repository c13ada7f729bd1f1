"""What a forward pass does between its matrix products, on torch's operations.

The portable implementation of `StepOps`; `cpu_step_ops` is the fast one for CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from specsched_kernels.paged_attention import paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv

from specsched_executor.core import ModelBatch
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's facts, weights and table of angles, float32 [max_context_tokens, head_dim]."""

    spec: DecoderSpec
    weights: DecoderWeights
    cos_sin: torch.Tensor


class StepOps(Protocol):
    """One forward pass; holds the residual stream, float32 [n, hidden_size].

    What a method returns is valid until the same method is called again.
    """

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """residual += delta; returns its RMS norm with weights `norm`, [n, hidden_size]."""

    def attend(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        """[n, (H + 2 Hkv) * D], q | k | v -> attention [n, H * D]; writes k and v to the cache."""

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: [n, 2 * intermediate] -> [n, intermediate]."""


class TorchStepOps:
    """StepOps for any shape and device."""

    def __init__(
        self,
        decoder: Decoder,
        batch: ModelBatch,
        cache: PagedKvCache,
        residual: torch.Tensor,
    ) -> None:
        self._config = decoder.spec.config
        self._layers = decoder.weights.layers
        self._cos_sin = decoder.cos_sin
        self._batch = batch
        self._cache = cache
        self._residual = residual

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See StepOps."""
        if delta is not None:
            self._residual += delta
        return rms_norm(self._residual, norm, self._config.rms_norm_eps)

    def attend(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        config, weights, batch = self._config, self._layers[layer], self._batch
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        heads = projected.view(-1, sum(counts), config.head_dim)
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
        )
        return attended.flatten(1)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
