"""Grouped-query attention over a paged cache, on the ops that are best where the weights are."""

from __future__ import annotations

import torch

from specsched_executor.core import KvCache, ModelBatch
from specsched_executor.model.attention import StepOps
from specsched_executor.model.cpu_step_ops import CpuStepOps, whole_vectors
from specsched_executor.model.device_step_ops import DeviceStepOps
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.step_ops import GroupedLayers, TorchStepOps

__all__ = ["GroupedAttention"]


class GroupedAttention:
    """Implements Attention for Llama and Qwen3."""

    def __init__(self, layers: GroupedLayers) -> None:
        self._layers = layers
        self._device = layers.cos_sin.device

    def allocate_cache(self, num_blocks: int, block_size: int) -> PagedKvCache:
        """See Attention. float32 on a CPU, where the fast attention needs a block_size of 16, 32,
        64, 128 or 256; the dtype of the weights on a device.
        """
        config = self._layers.spec.config
        if self._device.type != "cpu":
            shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
            dtype = self._layers.dtype
            return PagedKvCache.allocate_on_device(config.num_layers, shape, dtype, self._device)
        return PagedKvCache.allocate(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim
        )

    def block_bytes(self, block_size: int) -> int:
        """See Attention."""
        config = self._layers.spec.config
        dtype = torch.float32 if self._device.type == "cpu" else self._layers.dtype
        numbers = 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim
        return numbers * dtype.itemsize

    def begin(self, batch: ModelBatch, cache: KvCache, residual: torch.Tensor) -> StepOps:
        """See Attention."""
        if not isinstance(cache, PagedKvCache):
            raise TypeError(f"expected a PagedKvCache, not {type(cache).__name__}")
        if self._device.type != "cpu":
            return DeviceStepOps(self._layers, batch, cache, residual)
        if cache.storage is not None and whole_vectors(self._layers.spec):
            return CpuStepOps(self._layers, batch, cache.storage, residual)
        return TorchStepOps(self._layers, batch, cache, residual)
