"""The attention that a decoder is built for."""

from __future__ import annotations

from specsched_executor.model.attention import Attention
from specsched_executor.model.grouped_attention import GroupedAttention
from specsched_executor.model.grouped_weights import GroupedWeights
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.sparse_mla.attention import SparseMlaAttention
from specsched_executor.model.sparse_mla.layouts import IndexerPlan
from specsched_executor.model.sparse_mla.weights import SparseMlaWeights
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.step_ops import GroupedLayers
from specsched_executor.model.weights import DecoderWeights

__all__ = ["build_attention"]


def build_attention(
    spec: DecoderSpec, weights: DecoderWeights, indexer: IndexerPlan | None
) -> Attention:
    """Over the attention weights of all layers, where they are; indexer: see AttentionPlan."""
    config, latent = spec.config, spec.sparse_mla
    dtype, device = weights.embedding.dtype, weights.embedding.device
    rotary_dim = config.head_dim if latent is None else latent.rope_head_dim
    frequencies = rope_frequencies(rotary_dim, config.rope_theta, spec.rope_scaling)
    cos_sin = cos_sin_table(frequencies, config.max_context_tokens, spec.rope_scaling).to(device)
    if latent is None or indexer is None:
        grouped = [x.attention for x in weights.layers if isinstance(x.attention, GroupedWeights)]
        return GroupedAttention(GroupedLayers(spec.config, tuple(grouped), cos_sin, dtype))
    return SparseMlaAttention(
        config,
        latent,
        [x.attention for x in weights.layers if isinstance(x.attention, SparseMlaWeights)],
        cos_sin,
        dtype,
        indexer,
    )
