"""The weights of sparse latent attention, laid out for queries in the latent space."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.core import ModelConfig
from specsched_executor.model.head_linear import HeadLinear, head_linear
from specsched_executor.model.linear import Linear
from specsched_executor.model.spec import SparseMlaSpec
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["SparseMlaWeights"]


@dataclass(frozen=True, slots=True)
class SparseMlaWeights:
    """One layer.

    from_hidden: [compressed query | latent | rotary key | index key | index head weights] of a
    hidden state. from_query: [parts of all heads without positions | rotary parts of all heads |
    index query] of a compressed query. Rotary parts are in rotate-half order, where the checkpoint
    has pairs side by side. absorb_key takes a query head to the latent space, absorb_value an
    attended latent to the head's values.
    """

    from_hidden: Linear
    query_norm: torch.Tensor
    latent_norm: torch.Tensor
    index_norm_weight: torch.Tensor
    index_norm_bias: torch.Tensor
    from_query: Linear
    absorb_key: HeadLinear
    absorb_value: HeadLinear
    output: Linear

    @classmethod
    def read(
        cls, reader: TensorReader, prefix: str, config: ModelConfig, spec: SparseMlaSpec
    ) -> SparseMlaWeights:
        """The tensors named `prefix` and q_a_proj, ..., indexer.wk, ..."""
        heads, hidden = config.num_heads, config.hidden_size
        index, rotary = f"{prefix}indexer.", spec.rope_head_dim
        latent, query = f"{prefix}kv_a_proj_with_mqa", f"{prefix}q_b_proj"
        from_hidden = {
            f"{prefix}q_a_proj": spec.q_lora_rank,
            latent: spec.entry_dim,
            f"{index}wk": spec.index_head_dim,
            f"{index}weights_proj": spec.index_heads,
        }
        from_query = {
            query: heads * (spec.nope_head_dim + rotary),
            f"{index}wq_b": spec.index_heads * spec.index_head_dim,
        }
        latent_rows = _row_order(1, spec.kv_lora_rank, rotary)
        query_rows = _row_order(heads, spec.nope_head_dim, rotary)
        absorb_key, absorb_value = _absorbed(reader, prefix, heads, spec)
        return cls(
            from_hidden=reader.fused(
                from_hidden, hidden, arrange={latent: lambda part: part[latent_rows]}
            ),
            query_norm=reader.norm(f"{prefix}q_a_layernorm", spec.q_lora_rank),
            latent_norm=reader.norm(f"{prefix}kv_a_layernorm", spec.kv_lora_rank),
            index_norm_weight=reader.norm(f"{index}k_norm", spec.index_head_dim),
            index_norm_bias=reader.vector(f"{index}k_norm.bias", spec.index_head_dim),
            from_query=reader.fused(
                from_query, spec.q_lora_rank, arrange={query: lambda part: part[query_rows]}
            ),
            absorb_key=absorb_key,
            absorb_value=absorb_value,
            output=reader.fused({f"{prefix}o_proj": hidden}, heads * spec.value_head_dim),
        )


def _absorbed(
    reader: TensorReader, prefix: str, heads: int, spec: SparseMlaSpec
) -> tuple[HeadLinear, HeadLinear]:
    rows = spec.nope_head_dim + spec.value_head_dim
    stacked = reader.stacked({f"{prefix}kv_b_proj": heads * rows}, spec.kv_lora_rank)
    by_head = stacked.view(heads, rows, spec.kv_lora_rank)
    keys, values = torch.split(by_head, [spec.nope_head_dim, spec.value_head_dim], dim=1)
    make_linear = reader.make_linear
    return head_linear(make_linear, keys.transpose(1, 2)), head_linear(make_linear, values)


def _row_order(heads: int, plain: int, rotary: int) -> torch.Tensor:
    """Which row comes where: the plain rows of all heads, then their rotary ones.

    A head's rows (2 i, 2 i + 1), which rotate together, become (i, i + rotary / 2).
    """
    rows = torch.arange(heads * (plain + rotary)).view(heads, plain + rotary)
    pairs = rows[:, plain:].view(heads, rotary // 2, 2)
    return torch.cat((rows[:, :plain].flatten(), pairs.transpose(1, 2).flatten()))
