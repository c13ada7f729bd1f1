"""The weights of a decoder, fused and laid out as its forward pass reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.checkpoint import Checkpoint
from specsched_executor.model.feed_forward import DenseFeedForward, FeedForward
from specsched_executor.model.grouped_weights import GroupedWeights
from specsched_executor.model.linear import Linear, LinearFactory
from specsched_executor.model.mixture import MixtureFeedForward
from specsched_executor.model.sparse_mla.weights import SparseMlaWeights
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["DecoderWeights", "LayerWeights", "load_weights"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: torch.Tensor
    attention: GroupedWeights | SparseMlaWeights
    post_attention_norm: torch.Tensor
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights; embedding: [vocab, hidden], final_norm: [hidden]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: Linear


def load_weights(checkpoint: Checkpoint, make_linear: LinearFactory) -> DecoderWeights:
    """Read every tensor the decoder needs; ModelFormatError names one missing or misshapen."""
    spec, config = checkpoint.spec, checkpoint.spec.config

    def of_vocabulary(name: str) -> torch.Tensor:
        shape = (config.vocab_size, config.hidden_size)
        return checkpoint.tensor(name, torch.empty(shape, device=make_linear.device))

    embedding = of_vocabulary("model.embed_tokens.weight")
    tied = config.tie_word_embeddings
    lm_head = make_linear.head(embedding if tied else of_vocabulary("lm_head.weight"))
    reader = TensorReader(checkpoint, make_linear)
    return DecoderWeights(
        embedding=embedding.to(make_linear.dtype),
        layers=tuple(_read_layer(reader, spec, layer) for layer in range(config.num_layers)),
        final_norm=reader.norm("model.norm", config.hidden_size),
        lm_head=lm_head,
    )


def _read_layer(reader: TensorReader, spec: DecoderSpec, layer: int) -> LayerWeights:
    prefix, hidden = f"model.layers.{layer}.", spec.config.hidden_size
    attention = f"{prefix}self_attn."
    return LayerWeights(
        input_norm=reader.norm(f"{prefix}input_layernorm", hidden),
        attention=GroupedWeights.read(reader, attention, spec)
        if spec.sparse_mla is None
        else SparseMlaWeights.read(reader, attention, spec.config, spec.sparse_mla),
        post_attention_norm=reader.norm(f"{prefix}post_attention_layernorm", hidden),
        feed_forward=_read_feed_forward(reader, spec, layer),
    )


def _read_feed_forward(reader: TensorReader, spec: DecoderSpec, layer: int) -> FeedForward:
    prefix, config, mixture = f"model.layers.{layer}.mlp.", spec.config, spec.mixture
    if mixture is not None and layer >= mixture.first_layer:
        return MixtureFeedForward.read(reader, prefix, config.hidden_size, mixture)
    return DenseFeedForward.read(
        reader, prefix, config.hidden_size, config.intermediate_size, has_bias=spec.mlp_bias
    )
