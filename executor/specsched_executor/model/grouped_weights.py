"""The weights of grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.linear import Linear
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["GroupedWeights"]


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """One layer; qkv: [q | k | v] in one product."""

    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear

    @classmethod
    def read(cls, reader: TensorReader, prefix: str, spec: DecoderSpec) -> GroupedWeights:
        """The tensors named `prefix` and q_proj, k_proj, ..."""
        config = spec.config
        query = config.num_heads * config.head_dim
        key = config.num_kv_heads * config.head_dim
        qkv = {f"{prefix}q_proj": query, f"{prefix}k_proj": key, f"{prefix}v_proj": key}

        def head_norm(name: str) -> torch.Tensor | None:
            return reader.norm(f"{prefix}{name}", config.head_dim) if spec.qk_norm else None

        return cls(
            qkv=reader.fused(qkv, config.hidden_size, has_bias=spec.attention_bias),
            query_norm=head_norm("q_norm"),
            key_norm=head_norm("k_norm"),
            output=reader.fused(
                {f"{prefix}o_proj": config.hidden_size}, query, has_bias=spec.attention_out_bias
            ),
        )
