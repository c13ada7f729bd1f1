"""The drafter's forward pass on a device (arXiv 2607.05147, section 3.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from specsched_kernels.add_rms_norm import add_rms_norm
from specsched_kernels.paged_attention import paged_attention
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rotate_and_store import HeadNorms, rotate_and_store
from specsched_kernels.silu_and_mul import silu_and_mul
from specsched_kernels.window_pages import PlacedBlocks, WindowPages

from specsched_executor.drafters.dspark import DSparkCheckpoint
from specsched_executor.drafters.dspark.weights import BackboneWeights
from specsched_executor.model.grouped_weights import GroupedWeights
from specsched_executor.model.linear import DeviceLinear
from specsched_executor.model.rope import cos_sin_table, rope_frequencies

__all__ = ["DeviceBackbone"]


class DeviceBackbone:
    """Parallel layers over [anchor, mask, ..., mask] with a cache per slot.

    Weights and activations in the dtype of the embedding, the residual stream float32.
    """

    def __init__(
        self,
        checkpoint: DSparkCheckpoint,
        embedding: torch.Tensor,
        pages: WindowPages,
        num_slots: int,
        max_positions: int,
    ) -> None:
        self._config = config = checkpoint.config
        self._embedding = embedding
        device, dtype = embedding.device, embedding.dtype
        tensors = {name: t.to(device, dtype) for name, t in checkpoint.tensors.items()}
        self._weights = BackboneWeights.of(tensors, config.num_layers, DeviceLinear)
        # Keys and values of each layer.
        cache = (config.num_layers, 2, num_slots * pages.pages_per_slot, pages.page_tokens)
        shape = (*cache, config.num_kv_heads, config.head_dim)
        self._caches = torch.zeros(shape, dtype=dtype, device=device)
        self._starts = torch.arange(num_slots + 1, device=device) * config.block_size
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, None)
        self._cos_sin = cos_sin_table(frequencies, max_positions).to(device)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._embedding.dtype

    def add_context(
        self, features: torch.Tensor, positions: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Store keys and values of context tokens; features: [n, L * hidden], the other int64 [n].

        A negative slot stores nothing.
        """
        config = self._config
        fused = rms_norm(
            self._weights.fuse(features), self._weights.context_norm, config.rms_norm_eps
        )
        heads = self._weights.context(fused).view(
            len(features), config.num_layers, 2 * config.num_kv_heads, config.head_dim
        )
        for index, layer in enumerate(self._weights.layers):
            keys, values = self._caches[index]
            rotate_and_store(
                heads[:, index],
                0,
                positions,
                slot_mapping,
                self._cos_sin,
                keys,
                values,
                self._norms_of(layer.attention),
            )

    def run(self, blocks: PlacedBlocks) -> torch.Tensor:
        """Normed hidden states [R, k, hidden] of one block per request."""
        config = self._config
        residual = F.embedding(blocks.token_ids, self._embedding).float()
        delta: torch.Tensor | None = None
        for layer, cache in zip(self._weights.layers, self._caches, strict=True):
            attention = layer.attention
            projected = attention.qkv(self._add_norm(residual, delta, layer.input_norm))
            delta = attention.output(self._attend(attention, cache, projected, blocks))
            normed = self._add_norm(residual, delta, layer.post_norm)
            delta = layer.feed_forward(normed, silu_and_mul)
        return self._add_norm(residual, delta, self._weights.final_norm).view(
            -1, config.block_size, config.hidden_size
        )

    def _attend(
        self,
        weights: GroupedWeights,
        cache: torch.Tensor,
        projected: torch.Tensor,
        blocks: PlacedBlocks,
    ) -> torch.Tensor:
        config, (keys, values) = self._config, cache
        heads = projected.view(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        rotate_and_store(
            heads,
            config.num_heads,
            blocks.positions,
            blocks.slot_mapping,
            self._cos_sin,
            keys,
            values,
            self._norms_of(weights),
        )
        return paged_attention(
            heads[:, : config.num_heads],
            keys,
            values,
            blocks.block_tables,
            self._starts[: len(blocks.context_lens) + 1],
            blocks.context_lens,
            scale=config.head_dim**-0.5,
            max_query_len=config.block_size,
            is_causal=False,
        ).flatten(1)

    def _norms_of(self, weights: GroupedWeights) -> HeadNorms | None:
        if weights.query_norm is None or weights.key_norm is None:
            return None
        return HeadNorms(weights.query_norm, weights.key_norm, self._config.rms_norm_eps)

    def _add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty_like(residual, dtype=self._embedding.dtype)
        return add_rms_norm(residual, delta, weight, self._config.rms_norm_eps, out=out)
