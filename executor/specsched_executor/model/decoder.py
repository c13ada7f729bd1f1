"""The forward pass of decoders over a paged cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specsched_executor.core import KvCache, ModelBatch, ModelConfig, TargetOutput
from specsched_executor.model.attention_choice import build_attention
from specsched_executor.model.attention_plan import AttentionPlan, plan_attention
from specsched_executor.model.linear import Linear
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.weights import DecoderWeights


class DecoderModel:
    """Implements core.TargetModel for Llama, Qwen3 and DeepSeek-V3.2.

    On a CPU activations are float32 and only the matrix products run in the dtype of the weights;
    on a device the residual stream alone is float32. plan: None for that of a scheduled model where
    the weights are.
    """

    def __init__(
        self, spec: DecoderSpec, weights: DecoderWeights, plan: AttentionPlan | None = None
    ) -> None:
        self._spec = spec
        self._weights = weights
        self.attention_plan = plan or plan_attention(spec, weights.embedding.device)
        self._attention = build_attention(spec, weights, self.attention_plan.indexer)

    @property
    def config(self) -> ModelConfig:
        """Shape facts."""
        return self._spec.config

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self._weights.embedding.device

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden] in the dtype of the weights; drafters share it."""
        return self._weights.embedding

    @property
    def lm_head(self) -> Linear:
        """Hidden states after the final norm -> logits; drafters share it."""
        return self._weights.lm_head

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Memory for num_blocks * block_size tokens; ValueError for sizes that it cannot have."""
        return self._attention.allocate_cache(num_blocks, block_size)

    def kv_block_bytes(self, block_size: int) -> int:
        """Memory of one block of the cache, in all layers."""
        return self._attention.block_bytes(block_size)

    @torch.inference_mode()
    def forward(self, batch: ModelBatch, kv_cache: KvCache) -> TargetOutput:
        """Run one ragged step: write what the rows leave in the cache, return the wanted logits.

        Rows past query_start_loc[-1] and rows with slot PAD_SLOT disturb nobody. Raises TypeError
        for a cache that this model did not allocate.
        """
        weights = self._weights
        residual = F.embedding(batch.token_ids, weights.embedding).float()
        ops = self._attention.begin(batch, kv_cache, residual)
        features: dict[int, torch.Tensor] = {}
        delta: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            delta = ops.attend(index, ops.add_norm(layer.input_norm, delta))
            normed = ops.add_norm(layer.post_attention_norm, delta)
            delta = layer.feed_forward(normed, ops.gate)
            if index in batch.feature_layers:
                features[index] = residual + delta
        normed = ops.add_norm(weights.final_norm, delta)
        logits = weights.lm_head(normed[batch.logit_rows])
        return TargetOutput(logits=logits, features=features)
