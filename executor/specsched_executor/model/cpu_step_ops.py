"""What a forward pass does between its matrix products, on the compiled CPU kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.cpu.attention_layer import attention_layer
from specsched_kernels.cpu.rows import add_rms_norm, rms_norm, silu_and_mul
from specsched_kernels.cpu.threads import num_workers
from specsched_kernels.cpu.vector_ir import LANES

from specsched_executor.core import ModelBatch
from specsched_executor.model.kv_cache import LayerArrays
from specsched_executor.model.step_ops import GroupedLayers, GroupedShape

Floats = npt.NDArray[np.float32]


def whole_vectors(config: GroupedShape) -> bool:
    """Whether the feed-forward size is whole vectors; the cache vouches for its own sizes."""
    return config.intermediate_size % LANES == 0


class CpuStepOps:
    """StepOps in three kernel calls per layer; buffers and numpy views are made once per step."""

    def __init__(
        self,
        layers: GroupedLayers,
        batch: ModelBatch,
        storage: tuple[LayerArrays, ...],
        residual: torch.Tensor,
        *,
        is_causal: bool = True,
    ) -> None:
        config = layers.config
        num_rows = residual.shape[0]
        self._weights = layers.weights
        self._storage = storage
        self._residual: Floats = residual.numpy()
        self._normed = torch.empty_like(residual)
        self._attended = torch.zeros(num_rows, config.num_heads * config.head_dim)
        self._gated = torch.empty(num_rows, config.intermediate_size)
        self._normed_array: Floats = self._normed.numpy()
        self._attended_array = self._attended.numpy().reshape(
            num_rows, config.num_heads, config.head_dim
        )
        self._gated_array: Floats = self._gated.numpy()
        self._heads_shape = (num_rows, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        self._eps = np.float32(config.rms_norm_eps)
        self._scale = np.float32(config.head_dim**-0.5)
        self._positions = batch.positions.numpy()
        self._cos_sin = layers.cos_sin.numpy()
        self._slots = batch.slot_mapping.numpy()
        self._sequences = (
            batch.block_tables.numpy(),
            batch.query_start_loc.numpy(),
            batch.context_lens.numpy(),
        )
        self._is_causal = is_causal
        self._workers = num_workers(self._attended.numel() * int(batch.context_lens.max()))
        self._gate_workers = num_workers(self._gated.numel())

    def add_norm(self, norm: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """See StepOps."""
        weight, out = norm.numpy(), self._normed_array
        if delta is None:
            rms_norm(self._residual, weight, self._eps, out, 0, len(out))
        else:
            add_rms_norm(self._residual, delta.numpy(), weight, self._eps, out)
        return self._normed

    def attend(self, layer: int, normed: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        weights = self._weights[layer]
        attention_layer(
            weights.qkv(normed).numpy().reshape(self._heads_shape),
            None if weights.query_norm is None else weights.query_norm.numpy(),
            None if weights.key_norm is None else weights.key_norm.numpy(),
            self._eps,
            self._positions,
            self._cos_sin,
            self._slots,
            *self._storage[layer],
            *self._sequences,
            self._scale,
            self._attended_array,
            self._is_causal,
            self._workers,
        )
        return weights.output(self._attended)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        silu_and_mul(gate_up.numpy(), self._gated_array, self._gate_workers)
        return self._gated
