"""The backbone's weights, laid out for the fewest products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from specsched_executor.model.feed_forward import DenseFeedForward
from specsched_executor.model.grouped_weights import GroupedWeights
from specsched_executor.model.linear import Linear

__all__ = ["BackboneWeights", "LayerWeights"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    input_norm: torch.Tensor
    attention: GroupedWeights
    post_norm: torch.Tensor
    feed_forward: DenseFeedForward


@dataclass(frozen=True, slots=True)
class BackboneWeights:
    """context: keys and values of all layers, k before v, in one product of the fused features."""

    fuse: Linear
    context_norm: torch.Tensor
    context: Linear
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, torch.Tensor],
        num_layers: int,
        make_linear: Callable[[torch.Tensor], Linear],
    ) -> BackboneWeights:
        """From a checkpoint's tensors, [out, in] each; norms stay what they are."""
        context = [
            tensors[f"layers.{index}.self_attn.{name}_proj.weight"]
            for index in range(num_layers)
            for name in ("k", "v")
        ]
        return cls(
            fuse=make_linear(tensors["fc.weight"]),
            context_norm=tensors["hidden_norm.weight"],
            context=make_linear(torch.cat(context)),
            layers=tuple(_layer(tensors, index, make_linear) for index in range(num_layers)),
            final_norm=tensors["norm.weight"],
        )


def _layer(
    tensors: Mapping[str, torch.Tensor], index: int, make_linear: Callable[[torch.Tensor], Linear]
) -> LayerWeights:
    prefix = f"layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def stacked(part: str, *names: str) -> Linear:
        return make_linear(torch.cat([tensors[f"{part}{name}_proj.weight"] for name in names]))

    return LayerWeights(
        input_norm=tensors[f"{prefix}input_layernorm.weight"],
        attention=GroupedWeights(
            qkv=stacked(attention, "q", "k", "v"),
            query_norm=tensors.get(f"{attention}q_norm.weight"),
            key_norm=tensors.get(f"{attention}k_norm.weight"),
            output=stacked(attention, "o"),
        ),
        post_norm=tensors[f"{prefix}post_attention_layernorm.weight"],
        feed_forward=DenseFeedForward(stacked(mlp, "gate", "up"), stacked(mlp, "down")),
    )
