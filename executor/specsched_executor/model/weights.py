"""The weights of a decoder, fused and laid out as its forward pass reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.checkpoint import Checkpoint
from specsched_executor.model.linear import Linear, LinearFactory


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. qkv: [q | k | v] in one product, gate_up: [gate | up]."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights; embedding: [vocab, hidden], final_norm: [hidden]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: Linear


def load_weights(checkpoint: Checkpoint, make_linear: LinearFactory) -> DecoderWeights:
    """Read every tensor the decoder needs; ModelFormatError names one missing or misshapen."""
    config = checkpoint.spec.config

    def of_vocabulary(name: str) -> torch.Tensor:
        shape = (config.vocab_size, config.hidden_size)
        return checkpoint.tensor(name, torch.empty(shape, device=make_linear.device))

    embedding = of_vocabulary("model.embed_tokens.weight")
    tied = config.tie_word_embeddings
    lm_head = make_linear.head(embedding if tied else of_vocabulary("lm_head.weight"))
    reader = _LayerReader(checkpoint, make_linear)
    return DecoderWeights(
        embedding=embedding.to(make_linear.dtype),
        layers=tuple(reader.read(layer) for layer in range(config.num_layers)),
        final_norm=reader.norm("model.norm", config.hidden_size),
        lm_head=lm_head,
    )


class _LayerReader:
    """Reads one layer after the other, fusing what is multiplied with the same input.

    All matrices pass through one scratch buffer: fresh memory for each would cost more in page
    faults than the reading itself.
    """

    def __init__(self, checkpoint: Checkpoint, make_linear: LinearFactory) -> None:
        self._checkpoint = checkpoint
        self._make_linear = make_linear
        self._spec = checkpoint.spec
        config = checkpoint.spec.config
        heads = config.num_heads + 2 * config.num_kv_heads
        rows = max(heads * config.head_dim, 2 * config.intermediate_size)
        self._scratch = torch.empty(rows * config.hidden_size, device=make_linear.device)

    def read(self, layer: int) -> LayerWeights:
        config, prefix = self._spec.config, f"model.layers.{layer}."
        hidden = config.hidden_size
        query, key_value = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        )
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        out_bias, mlp_bias = self._spec.attention_out_bias, self._spec.mlp_bias
        return LayerWeights(
            input_norm=self.norm(f"{prefix}input_layernorm", hidden),
            qkv=self._fused(
                {
                    f"{attention}q_proj": query,
                    f"{attention}k_proj": key_value,
                    f"{attention}v_proj": key_value,
                },
                hidden,
                self._spec.attention_bias,
            ),
            query_norm=self._head_norm(f"{attention}q_norm"),
            key_norm=self._head_norm(f"{attention}k_norm"),
            output=self._fused({f"{attention}o_proj": hidden}, query, out_bias),
            post_attention_norm=self.norm(f"{prefix}post_attention_layernorm", hidden),
            gate_up=self._fused(
                dict.fromkeys((f"{mlp}gate_proj", f"{mlp}up_proj"), config.intermediate_size),
                hidden,
                mlp_bias,
            ),
            down=self._fused({f"{mlp}down_proj": hidden}, config.intermediate_size, mlp_bias),
        )

    def norm(self, name: str, size: int) -> torch.Tensor:
        out = torch.empty(size, device=self._make_linear.device)
        return self._checkpoint.tensor(f"{name}.weight", out)

    def _head_norm(self, name: str) -> torch.Tensor | None:
        return self.norm(name, self._spec.config.head_dim) if self._spec.qk_norm else None

    def _fused(self, rows: dict[str, int], columns: int, has_bias: bool) -> Linear:
        """One linear of the named matrices stacked; `rows` gives the outputs of each."""
        read, total = self._checkpoint.tensor, sum(rows.values())
        weight = self._scratch[: total * columns].view(total, columns)
        start = 0
        for name, size in rows.items():
            read(f"{name}.weight", weight[start : start + size])
            start += size
        if not has_bias:
            return self._make_linear(weight, copy=True)
        bias = torch.empty(total, device=weight.device)
        for name, part in zip(rows, torch.split(bias, list(rows.values())), strict=True):
            read(f"{name}.bias", part)
        return self._make_linear(weight, bias, copy=True)
