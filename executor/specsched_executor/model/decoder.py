"""The forward pass of Llama-like decoders over a paged cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specsched_executor.core import KvCache, ModelBatch, ModelConfig, TargetOutput
from specsched_executor.model.cpu_step_ops import CpuStepOps, whole_vectors
from specsched_executor.model.device_step_ops import DeviceStepOps
from specsched_executor.model.kv_cache import PagedKvCache
from specsched_executor.model.linear import Linear
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.step_ops import Decoder, StepOps, TorchStepOps
from specsched_executor.model.weights import DecoderWeights


class DecoderModel:
    """Implements core.TargetModel for Llama and, with norms of queries and keys, Qwen3.

    On a CPU activations are float32 and only the matrix products run in the dtype of the weights;
    on a device the residual stream alone is float32.
    """

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights) -> None:
        config = spec.config
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, spec.rope_scaling)
        cos_sin = cos_sin_table(frequencies, config.max_context_tokens)
        self._decoder = Decoder(spec, weights, cos_sin.to(weights.embedding.device))

    @property
    def config(self) -> ModelConfig:
        """Shape facts."""
        return self._decoder.spec.config

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self._decoder.weights.embedding.device

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden] in the dtype of the weights; drafters share it."""
        return self._decoder.weights.embedding

    @property
    def lm_head(self) -> Linear:
        """Hidden states after the final norm -> logits; drafters share it."""
        return self._decoder.weights.lm_head

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKvCache:
        """Memory for num_blocks * block_size tokens; ValueError unless both are positive.

        float32 on a CPU, where the fast attention needs a block_size of 16, 32, 64, 128 or 256; the
        dtype of the weights on a device.
        """
        config = self.config
        if self.device.type != "cpu":
            shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
            dtype = self.embedding.dtype
            return PagedKvCache.allocate_on_device(config.num_layers, shape, dtype, self.device)
        return PagedKvCache.allocate(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim
        )

    @torch.inference_mode()
    def forward(self, batch: ModelBatch, kv_cache: KvCache) -> TargetOutput:
        """Run one ragged step: write the rows' keys and values, return the wanted logits.

        Rows past query_start_loc[-1] and rows with slot PAD_SLOT disturb nobody. Raises TypeError
        for a cache that this model did not allocate.
        """
        if not isinstance(kv_cache, PagedKvCache):
            raise TypeError(f"expected a PagedKvCache, not {type(kv_cache).__name__}")
        weights = self._decoder.weights
        residual = F.embedding(batch.token_ids, weights.embedding).float()
        ops = self._step_ops(batch, kv_cache, residual)
        features: dict[int, torch.Tensor] = {}
        delta: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            projected = layer.qkv(ops.add_norm(layer.input_norm, delta))
            delta = layer.output(ops.attend(index, projected))
            gate_up = layer.gate_up(ops.add_norm(layer.post_attention_norm, delta))
            delta = layer.down(ops.gate(gate_up))
            if index in batch.feature_layers:
                features[index] = residual + delta
        normed = ops.add_norm(weights.final_norm, delta)
        logits = weights.lm_head(normed[batch.logit_rows])
        return TargetOutput(logits=logits, features=features)

    def _step_ops(self, batch: ModelBatch, cache: PagedKvCache, residual: torch.Tensor) -> StepOps:
        if residual.device.type != "cpu":
            return DeviceStepOps(self._decoder, batch, cache, residual)
        if cache.storage is not None and whole_vectors(self._decoder.spec):
            return CpuStepOps(self._decoder, batch, cache.storage, residual)
        return TorchStepOps(self._decoder, batch, cache, residual)
