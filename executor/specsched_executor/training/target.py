"""The target in plain torch: whole sequences for training, one token a step for sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from specsched_kernels.paged_attention import paged_attention
from specsched_kernels.rope import rope
from specsched_kernels.write_kv import write_kv

from specsched_executor.core import ModelConfig
from specsched_executor.model.checkpoint import Checkpoint
from specsched_executor.model.loading import open_checkpoint
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.tokenizer import Tokenizer
from specsched_executor.training.target_weights import WeightReader

__all__ = ["SequenceStates", "SlotCache", "TrainingTarget", "load_training_target"]

_Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """features: [S, T, L * hidden], layers side by side; final: [S, T, hidden], after the norm."""

    features: torch.Tensor
    final: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotCache:
    """Keys and values of S slots of max_tokens each, per layer [S, max_tokens, Hkv, D]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    first_index: torch.Tensor


class TrainingTarget:
    """A frozen decoder in one dtype on one device; keeps no gradients.

    embedding, head: [vocab, hidden]; the same tensor where the target ties them.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> None:
        self._spec = checkpoint.spec
        self._device, self._dtype = device, dtype
        reader, config = WeightReader(checkpoint, device, dtype), checkpoint.spec.config
        vocabulary = (config.vocab_size, config.hidden_size)
        self.embedding = reader.tensor("model.embed_tokens.weight", *vocabulary)
        self.head = self.embedding
        if not config.tie_word_embeddings:
            self.head = reader.tensor("lm_head.weight", *vocabulary)
        self._final_norm = reader.tensor("model.norm.weight", config.hidden_size)
        self._layers = [reader.layer(index) for index in range(config.num_layers)]
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, self._spec.rope_scaling)
        self._cos_sin = cos_sin_table(frequencies, max_positions).to(device)

    @property
    def config(self) -> ModelConfig:
        """Shape facts."""
        return self._spec.config

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._dtype

    @torch.no_grad()
    def sequences(self, token_ids: torch.Tensor, layers: tuple[int, ...]) -> SequenceStates:
        """Hidden states of right-padded sequences, token_ids int64 [S, T]."""
        shape = token_ids.shape
        positions = torch.arange(shape[1], device=self._device).repeat(shape[0])

        def attend(
            _: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            q, k, v = (torch.unflatten(x, 0, shape).transpose(1, 2) for x in (query, key, value))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(shape.numel(), -1)

        kept: list[torch.Tensor] = []
        hidden = F.embedding(token_ids.flatten(), self.embedding)
        hidden = self._run(hidden, positions, attend, layers, kept)
        features = torch.unflatten(torch.cat(kept, dim=-1), 0, shape)
        final = torch.unflatten(self._norm(hidden, self._final_norm), 0, shape)
        return SequenceStates(features, final)

    @torch.no_grad()
    def step(
        self, token_ids: torch.Tensor, positions: torch.Tensor, cache: SlotCache
    ) -> torch.Tensor:
        """Logits [S, vocab] after one token of every slot; its keys and values join the cache."""
        slots, lengths = cache.first_index + positions, positions + 1

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            write_kv(key, value, slots, keys, values)
            return paged_attention(
                query,
                keys,
                values,
                cache.block_tables,
                cache.query_start_loc,
                lengths,
                scale=self.config.head_dim**-0.5,
                max_query_len=1,
                max_context_tokens=keys.shape[1],
            ).flatten(1)

        hidden = self._run(F.embedding(token_ids, self.embedding), positions, attend, (), [])
        return F.linear(self._norm(hidden, self._final_norm), self.head)

    def slot_cache(self, num_slots: int, max_tokens: int) -> SlotCache:
        """An empty cache for `step`."""
        config = self.config
        shape = (num_slots, max_tokens, config.num_kv_heads, config.head_dim)

        def allocate() -> list[torch.Tensor]:
            layers = range(config.num_layers)
            return [torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in layers]

        index = torch.arange(num_slots + 1, device=self._device)
        return SlotCache(
            keys=allocate(),
            values=allocate(),
            block_tables=index[:-1, None].to(torch.int32),
            query_start_loc=index,
            first_index=index[:-1] * max_tokens,
        )

    def _run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attend: _Attend,
        layers: tuple[int, ...],
        kept: list[torch.Tensor],
    ) -> torch.Tensor:
        """The last layer's output [n, hidden]; outputs of `layers` are appended to `kept`."""
        config = self.config
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        for index, layer in enumerate(self._layers):
            heads = F.linear(self._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
            heads = heads.view(-1, sum(counts), config.head_dim)
            query, key, value = torch.split(heads, counts, dim=1)
            if layer.query_norm is not None and layer.key_norm is not None:
                query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
                value = value.contiguous()
            rope(query, key, positions, self._cos_sin)
            attended = attend(index, query, key, value)
            hidden = hidden + F.linear(attended, layer.output, layer.output_bias)
            normed = self._norm(hidden, layer.post_norm)
            gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
            if index in layers:
                kept.append(hidden)
        return hidden

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def load_training_target(
    path: Path | None, device: torch.device, dtype: torch.dtype, max_positions: int
) -> tuple[TrainingTarget, Tokenizer]:
    """A GGUF file, a Hugging Face folder or, without a path, the installed default model.

    Raises ModelLoadError or TokenizerError.
    """
    opened = open_checkpoint(path)
    try:
        tokenizer = opened.load_tokenizer()
        return TrainingTarget(opened, device, dtype, max_positions), tokenizer
    finally:
        opened.close()
