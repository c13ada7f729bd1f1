"""The drafter's forward pass over paged context (arXiv 2607.05147, section 3.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from specsched_kernels.paged_attention import paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv

from specsched_executor.drafters.dspark.cache import DraftCache, NewRows
from specsched_executor.drafters.dspark.checkpoint import DSparkCheckpoint
from specsched_executor.drafters.dspark.weights import BackboneWeights
from specsched_executor.model.linear import LinearFactory
from specsched_executor.model.rope import cos_sin_table, rope_frequencies

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
        self._cos_sin = cos_sin_table(frequencies, config.max_positions)

    def add_context(self, features: torch.Tensor, rows: NewRows, cache: DraftCache) -> None:
        """Store keys and values of new context tokens; features: float32 [n, L * hidden]."""
        config = self._config
        fused = self._norm(self._weights.fuse(features), self._weights.context_norm)
        heads = self._weights.context(fused).view(
            len(features), config.num_layers, 2, config.num_kv_heads, config.head_dim
        )
        for index, layer in enumerate(self._weights.layers):
            key, value = heads[:, index, 0].contiguous(), heads[:, index, 1].contiguous()
            if layer.key_norm is not None:
                key = self._norm(key, layer.key_norm)
            rope(key[:, :0], key, rows.positions, self._cos_sin)
            write_kv(key, value, rows.slots, cache.keys[index], cache.values[index])

    def run(
        self, anchor_ids: torch.Tensor, slot_ids: torch.Tensor, cache: DraftCache
    ) -> torch.Tensor:
        """Normed hidden states float32 [R, k, hidden] of one block per slot, int64 [R] each."""
        config, rows = self._config, cache.block_rows(slot_ids)
        num_rows, k = len(rows.positions), config.block_size
        ids = torch.full((len(slot_ids), k), config.mask_token_id)
        ids[:, 0] = anchor_ids
        residual = F.embedding(ids.flatten(), self._embedding).float()
        # Every row of a block sees the whole block, so each is a sequence of its own that ends
        # where the block ends.
        tables = cache.tables(slot_ids).repeat_interleave(k, dim=0)
        context_lens = (cache.context_lens(slot_ids) + k).repeat_interleave(k)
        query_start_loc = torch.arange(num_rows + 1)
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(residual, layer.input_norm)
            heads = layer.qkv(normed).view(num_rows, sum(counts), config.head_dim)
            query, key, value = torch.split(heads, counts, dim=1)
            if layer.query_norm is not None and layer.key_norm is not None:
                query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
            rope(query, key, rows.positions, self._cos_sin)
            write_kv(key, value, rows.slots, cache.keys[index], cache.values[index])
            attended = paged_attention(
                query,
                cache.keys[index],
                cache.values[index],
                tables,
                query_start_loc,
                context_lens,
                scale=config.head_dim**-0.5,
                max_query_len=1,
            )
            residual = residual + layer.output(attended.flatten(1))
            gate, up = layer.gate_up(self._norm(residual, layer.post_norm)).chunk(2, dim=-1)
            residual = residual + layer.down(F.silu(gate).mul_(up))
        return self._norm(residual, self._weights.final_norm).view(-1, k, config.hidden_size)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._config.rms_norm_eps)
