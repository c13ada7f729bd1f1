"""Sparse latent attention: the indexer chooses tokens, queries attend to them in latent space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from specsched_kernels.index_rows import quantize_index_queries, store_index_keys
from specsched_kernels.indexer_logits import KEY_BLOCK_SIZE
from specsched_kernels.latent_rows import store_latent
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.sparse_mla import sparse_mla

from specsched_executor.core import KvCache, ModelBatch, ModelConfig
from specsched_executor.model.attention import StepOps
from specsched_executor.model.row_ops import RowOps, row_ops
from specsched_executor.model.sparse_mla.cache import LatentKvCache, latent_block_bytes
from specsched_executor.model.sparse_mla.indexer import IndexerStep, begin_indexer
from specsched_executor.model.sparse_mla.layouts import IndexerPlan
from specsched_executor.model.sparse_mla.weights import SparseMlaWeights
from specsched_executor.model.spec import SparseMlaSpec

__all__ = ["SparseMlaAttention"]

_INDEX_NORM_EPS = 1e-6


class SparseMlaAttention:
    """Implements Attention for DeepSeek-V3.2, on a CPU and on a device."""

    def __init__(  # noqa: PLR0917 -- what it is made of
        self,
        config: ModelConfig,
        spec: SparseMlaSpec,
        layers: Sequence[SparseMlaWeights],
        cos_sin: torch.Tensor,
        dtype: torch.dtype,
        plan: IndexerPlan,
    ) -> None:
        self.config = config
        self.spec = spec
        self.layers = layers
        self.cos_sin = cos_sin
        self._dtype = torch.float32 if cos_sin.device.type == "cpu" else dtype
        self._plan = plan

    def allocate_cache(self, num_blocks: int, block_size: int) -> LatentKvCache:
        """See Attention; blocks are of 64 tokens, as DeepGEMM's paged kernels read them."""
        if block_size != KEY_BLOCK_SIZE:
            raise ValueError(
                f"blocks of {block_size} tokens; sparse latent attention takes {KEY_BLOCK_SIZE}"
            )
        return LatentKvCache.allocate(
            self.config.num_layers,
            num_blocks,
            self.spec.entry_dim,
            self._dtype,
            self.cos_sin.device,
        )

    def block_bytes(self, block_size: int) -> int:
        """See Attention."""
        blocks = block_size / KEY_BLOCK_SIZE
        num_layers = self.config.num_layers
        return int(blocks * latent_block_bytes(num_layers, self.spec.entry_dim, self._dtype))

    def begin(self, batch: ModelBatch, cache: KvCache, residual: torch.Tensor) -> StepOps:
        """See Attention."""
        if not isinstance(cache, LatentKvCache):
            raise TypeError(f"expected a LatentKvCache, not {type(cache).__name__}")
        rows = row_ops(residual, self.config.rms_norm_eps, self._dtype)
        layout, max_context = self._plan.layout(len(batch.context_lens)), _max_context_tokens(batch)
        indexer = begin_indexer(layout, self._plan.device, batch, max_context)
        num_chosen = min(self.spec.index_topk, max_context)
        return _SparseMlaStep(self, batch, cache, rows, indexer, num_chosen=num_chosen)


def _max_context_tokens(batch: ModelBatch) -> int:
    if batch.max_context_tokens is not None:
        return batch.max_context_tokens
    if batch.context_lens.device.type == "cpu":
        return int(batch.context_lens.max())
    return batch.block_tables.shape[1] * KEY_BLOCK_SIZE


class _SparseMlaStep:
    """Implements StepOps; nothing is read back, and shapes alone fix the launches on a device."""

    def __init__(
        self,
        attention: SparseMlaAttention,
        batch: ModelBatch,
        cache: LatentKvCache,
        rows: RowOps,
        indexer: IndexerStep,
        *,
        num_chosen: int,
    ) -> None:
        spec, config = attention.spec, attention.config
        self.add_norm = rows.add_norm
        self.gate = rows.gate
        self._attention = attention
        self._spec = spec
        self._batch = batch
        self._cache = cache
        self._indexer = indexer
        self._num_chosen = num_chosen
        self._hidden_parts = [
            spec.q_lora_rank,
            spec.entry_dim,
            spec.index_head_dim,
            spec.index_heads,
        ]
        self._query_parts = [
            config.num_heads * spec.nope_head_dim,
            config.num_heads * spec.rope_head_dim,
            spec.index_heads * spec.index_head_dim,
        ]
        self._index_scale = (spec.index_heads * spec.index_head_dim) ** -0.5

    def attend(self, layer: int, normed: torch.Tensor) -> torch.Tensor:
        """See StepOps."""
        spec, weights, cache = self._spec, self._attention.layers[layer], self._cache
        compressed, entry, index_key, head_weights = torch.split(
            weights.from_hidden(normed), self._hidden_parts, dim=1
        )
        eps = self._attention.config.rms_norm_eps
        compressed = rms_norm(compressed.contiguous(), weights.query_norm, eps)
        plain, rotary, index_query = torch.split(
            weights.from_query(compressed), self._query_parts, dim=1
        )
        rotary = rotary.view(len(normed), -1, spec.rope_head_dim)
        rotary_key = entry[:, None, spec.kv_lora_rank :]
        batch, cos_sin = self._batch, self._attention.cos_sin
        rope(rotary, rotary_key, batch.positions, cos_sin)
        latents = cache.latents[layer]
        store_latent(entry, weights.latent_norm, eps, batch.slot_mapping, latents)
        self._store_index_key(layer, index_key)
        chosen = self._choose(layer, index_query, head_weights)
        absorbed = weights.absorb_key(plain.view(len(normed), -1, spec.nope_head_dim))
        attended = sparse_mla(
            torch.cat((absorbed, rotary), dim=-1),
            latents,
            chosen,
            batch.block_tables,
            self._indexer.rows.request_ids,
            scale=spec.softmax_scale,
            value_dim=spec.kv_lora_rank,
        )
        return weights.output(weights.absorb_value(attended).flatten(1))

    def _store_index_key(self, layer: int, key: torch.Tensor) -> None:
        weights, batch = self._attention.layers[layer], self._batch
        store_index_keys(
            key,
            weights.index_norm_weight,
            weights.index_norm_bias,
            _INDEX_NORM_EPS,
            batch.positions,
            batch.slot_mapping,
            self._attention.cos_sin,
            self._cache.index_keys[layer],
        )

    def _choose(self, layer: int, query: torch.Tensor, head_weights: torch.Tensor) -> torch.Tensor:
        """int32 [n, num_chosen]: positions that each row attends to."""
        spec = self._spec
        values, scaled = quantize_index_queries(
            query.view(len(query), spec.index_heads, spec.index_head_dim),
            head_weights,
            self._batch.positions,
            self._attention.cos_sin,
            weight_scale=self._index_scale,
        )
        keys = self._cache.index_keys[layer]
        return self._indexer.choose(values, scaled, keys, self._num_chosen)
