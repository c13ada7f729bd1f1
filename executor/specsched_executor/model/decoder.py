"""The forward pass of Llama-like decoders over a paged cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specsched_executor.core import KvCache, ModelBatch, ModelConfig, TargetOutput
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.weights import DecoderWeights, LayerWeights
from specsched_kernels.paged_attention import allocate_kv, paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv


class DecoderModel:
    """Implements core.TargetModel for Llama and, with norms of queries and keys, Qwen3.

    Activations are float32; only the matrix products run in the dtype of the weights.
    """

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights) -> None:
        config = spec.config
        self._config = config
        self._weights = weights
        self._scale = config.head_dim**-0.5
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, spec.rope_scaling)
        self._cos_sin = cos_sin_table(frequencies, config.max_context_tokens)

    @property
    def config(self) -> ModelConfig:
        """Shape facts."""
        return self._config

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKvCache:
        """Memory for num_blocks * block_size tokens, float32. ValueError unless both are positive."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks of {block_size} tokens; both >= 1")
        config = self._config
        layers = [
            allocate_kv(num_blocks, block_size, config.num_kv_heads, config.head_dim)
            for _ in range(config.num_layers)
        ]
        return PagedKvCache(
            tuple(keys for keys, _ in layers), tuple(values for _, values in layers)
        )

    @torch.inference_mode()
    def forward(self, batch: ModelBatch, kv_cache: KvCache) -> TargetOutput:
        """Run one ragged step: writes the rows' keys and values, returns the wanted logits.

        Attention, write_kv and rope act on the batch as core.ModelBatch lays it out. TypeError for a
        cache that this model did not allocate.
        """
        if not isinstance(kv_cache, PagedKvCache):
            raise TypeError(f"expected a PagedKvCache, not {type(kv_cache).__name__}")
        weights = self._weights
        hidden = F.embedding(batch.token_ids, weights.embedding).float()
        features: dict[int, torch.Tensor] = {}
        caches = zip(kv_cache.keys, kv_cache.values, strict=True)
        for index, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
            self._attention(layer, hidden, batch, cache)
            self._feed_forward(layer, hidden)
            if index in batch.feature_layers:
                features[index] = hidden.clone()
        last = hidden[batch.logit_rows]
        logits = weights.lm_head(self._norm(last, weights.final_norm))
        return TargetOutput(logits=logits, features=features)

    def _attention(
        self,
        layer: LayerWeights,
        hidden: torch.Tensor,
        batch: ModelBatch,
        cache: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """hidden += attention(norm(hidden)), in place."""
        config = self._config
        heads = config.num_heads + 2 * config.num_kv_heads
        fused = layer.qkv(self._norm(hidden, layer.input_norm)).view(-1, heads, config.head_dim)
        query, key, value = fused.split(
            (config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._norm(query, layer.query_norm)
            key = self._norm(key, layer.key_norm)
        rope(query, key, batch.positions, self._cos_sin)
        write_kv(key, value, batch.slot_mapping, *cache)
        attended = paged_attention(
            query,
            *cache,
            batch.block_tables,
            batch.query_start_loc,
            batch.context_lens,
            scale=self._scale,
        )
        hidden += layer.output(attended.view(attended.shape[0], -1))

    def _feed_forward(self, layer: LayerWeights, hidden: torch.Tensor) -> None:
        """hidden += down(silu(gate) * up), in place."""
        gate, up = layer.gate_up(self._norm(hidden, layer.post_attention_norm)).chunk(2, dim=-1)
        hidden += layer.down(F.silu(gate).mul_(up))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._config.rms_norm_eps)
