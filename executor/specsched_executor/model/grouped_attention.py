"""Grouped-query attention over a paged cache, on the ops that are best where the weights are."""

from __future__ import annotations

import torch

from specsched_executor.core import KvCache, ModelBatch
from specsched_executor.model.attention import StepOps
from specsched_executor.model.cpu_step_ops import CpuStepOps, whole_vectors
from specsched_executor.model.device_step_ops import DeviceStepOps
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.step_ops import GroupedLayers, TorchStepOps

__all__ = ["GroupedAttention", "begin_on_cpu"]


class GroupedAttention:
    """Implements Attention for Llama and Qwen3."""

    def __init__(self, layers: GroupedLayers) -> None:
        self._layers = layers
        self._device = layers.cos_sin.device

    def allocate_cache(self, num_blocks: int, block_size: int) -> PagedKvCache:
        """See Attention. float32 on a CPU, where the fast attention needs a block_size of 16, 32,
        64, 128 or 256; the dtype of the weights on a device.
        """
        config = self._layers.config
        if self._device.type != "cpu":
            shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
            dtype = self._layers.dtype
            return PagedKvCache.allocate_on_device(config.num_layers, shape, dtype, self._device)
        return PagedKvCache.allocate(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim
        )

    def block_bytes(self, block_size: int) -> int:
        """See Attention."""
        config = self._layers.config
        dtype = torch.float32 if self._device.type == "cpu" else self._layers.dtype
        numbers = 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim
        return numbers * dtype.itemsize

    def begin(self, batch: ModelBatch, cache: KvCache, residual: torch.Tensor) -> StepOps:
        """See Attention."""
        if not isinstance(cache, PagedKvCache):
            raise TypeError(f"expected a PagedKvCache, not {type(cache).__name__}")
        if self._device.type != "cpu":
            return DeviceStepOps(self._layers, batch, cache, residual)
        return begin_on_cpu(self._layers, batch, cache, residual)


def begin_on_cpu(
    layers: GroupedLayers,
    batch: ModelBatch,
    cache: PagedKvCache,
    residual: torch.Tensor,
    *,
    is_causal: bool = True,
) -> StepOps:
    """A forward pass on the compiled kernels, where they take these sizes.

    is_causal: rows see what comes before them and themselves; else all rows of their request.
    """
    if cache.storage is not None and whole_vectors(layers.config):
        return CpuStepOps(layers, batch, cache.storage, residual, is_causal=is_causal)
    return TorchStepOps(layers, batch, cache, residual, is_causal=is_causal)
