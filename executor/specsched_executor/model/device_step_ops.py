"""What a forward pass does between its matrix products, on a device: five launches per layer."""

from __future__ import annotations

import torch
from specsched_kernels.paged_attention import attention_order, paged_attention
from specsched_kernels.rotate_and_store import HeadNorms, rotate_and_store

from specsched_executor.core import ModelBatch
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.row_ops import DeviceRowOps
from specsched_executor.model.step_ops import GroupedLayers


class DeviceStepOps(DeviceRowOps):
    """StepOps whose activations have the dtype of the weights.

    Nothing is read back and shapes alone fix the launches, so a graph can capture a pass.
    """

    def __init__(
        self, layers: GroupedLayers, batch: ModelBatch, cache: PagedKvCache, residual: torch.Tensor
    ) -> None:
        super().__init__(residual, layers.config.rms_norm_eps, layers.dtype)
        self._config = layers.config
        self._weights = layers.weights
        self._cos_sin = layers.cos_sin
        self._batch = batch
        self._cache = cache
        self._order: torch.Tensor | None = None

    def attend(self, layer: int, normed: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        config, weights, batch = self._config, self._weights[layer], self._batch
        num_all_heads = config.num_heads + 2 * config.num_kv_heads
        heads = weights.qkv(normed).view(-1, num_all_heads, config.head_dim)
        query = heads[:, : config.num_heads]
        norms = None
        if weights.query_norm is not None and weights.key_norm is not None:
            norms = HeadNorms(weights.query_norm, weights.key_norm, config.rms_norm_eps)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        rotate_and_store(
            heads,
            config.num_heads,
            batch.positions,
            batch.slot_mapping,
            self._cos_sin,
            keys,
            values,
            norms,
        )
        if layer == 0 and batch.max_context_tokens is not None:
            self._order = attention_order(
                query,
                keys,
                batch.context_lens,
                max_query_len=batch.max_query_len,
                max_context_tokens=batch.max_context_tokens,
            )
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
            order=self._order,
        )
        return weights.output(attended.flatten(1))
