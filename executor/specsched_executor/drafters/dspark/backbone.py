"""The drafter's forward pass over paged context (arXiv 2607.05147, section 3.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv

from specsched_executor.drafters.dspark.cache import DraftCache, NewRows
from specsched_executor.drafters.dspark.checkpoint import DSparkCheckpoint
from specsched_executor.drafters.dspark.weights import BackboneWeights
from specsched_executor.model.grouped_attention import begin_on_cpu
from specsched_executor.model.linear import LinearFactory
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.step_ops import GroupedLayers

__all__ = ["Backbone"]


class Backbone:
    """Parallel layers over [anchor, mask, ..., mask], float32.

    Context keys and values are projected from the target's hidden states once per token, for all
    layers in one product.
    """

    def __init__(
        self, checkpoint: DSparkCheckpoint, embedding: torch.Tensor, make_linear: LinearFactory
    ) -> None:
        self._config = config = checkpoint.config
        tensors = {name: tensor.float() for name, tensor in checkpoint.tensors.items()}
        self._embedding = embedding
        self._weights = BackboneWeights.of(tensors, config.num_layers, make_linear)
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, None)
        self._layers = GroupedLayers(
            config,
            tuple(layer.attention for layer in self._weights.layers),
            cos_sin_table(frequencies, config.max_positions),
            make_linear.dtype,
        )

    def add_context(self, rows: NewRows, cache: DraftCache) -> None:
        """Store keys and values of new context tokens."""
        if not len(rows.features):
            return
        config = self._config
        fused = self._norm(self._weights.fuse(rows.features.float()), self._weights.context_norm)
        heads = self._weights.context(fused).view(
            len(rows.features), config.num_layers, 2, config.num_kv_heads, config.head_dim
        )
        for index, layer in enumerate(self._weights.layers):
            key, value = heads[:, index, 0].contiguous(), heads[:, index, 1].contiguous()
            if layer.attention.key_norm is not None:
                key = self._norm(key, layer.attention.key_norm)
            rope(key[:, :0], key, rows.positions, self._layers.cos_sin)
            write_kv(key, value, rows.slots, cache.pages.keys[index], cache.pages.values[index])

    def run(
        self, anchor_ids: torch.Tensor, slot_ids: torch.Tensor, cache: DraftCache
    ) -> torch.Tensor:
        """Normed hidden states float32 [R, k, hidden] of one block per slot, int64 [R] each."""
        config = self._config
        ids = torch.full((len(slot_ids), config.block_size), config.mask_token_id)
        ids[:, 0] = anchor_ids
        batch = cache.block_batch(slot_ids, ids)
        residual = F.embedding(batch.token_ids, self._embedding).float()
        # Every row of a block sees the whole block.
        ops = begin_on_cpu(self._layers, batch, cache.pages, residual, is_causal=False)
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self._weights.layers):
            delta = ops.attend(index, ops.add_norm(layer.input_norm, delta))
            delta = layer.feed_forward(ops.add_norm(layer.post_norm, delta), ops.gate)
        hidden = ops.add_norm(self._weights.final_norm, delta)
        return hidden.view(-1, config.block_size, config.hidden_size)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._config.rms_norm_eps)
