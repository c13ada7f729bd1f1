"""A checkpoint's weights in one dtype on one device, fused for plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.checkpoint import Checkpoint

__all__ = ["TargetLayer", "WeightReader"]


@dataclass(frozen=True, slots=True)
class TargetLayer:
    """One decoder layer; qkv is [q | k | v], gate_up [gate | up], each [out, in]."""

    input_norm: torch.Tensor
    post_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class WeightReader:
    """Reads tensors of a checkpoint to a device."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._device, self._dtype = device, dtype

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of this Hugging Face name."""
        return self._checkpoint.tensor(name, torch.empty(shape)).to(self._device, self._dtype)

    def layer(self, index: int) -> TargetLayer:
        """All weights of one decoder layer."""
        config, spec = self._checkpoint.spec.config, self._checkpoint.spec
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        prefix = f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = {f"{attention}q_proj": query, f"{attention}k_proj": key, f"{attention}v_proj": key}
        output, down = {f"{attention}o_proj": hidden}, {f"{mlp}down_proj": hidden}
        gate_up = {f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}
        has_norms, head_dim = spec.qk_norm, config.head_dim
        return TargetLayer(
            input_norm=self.tensor(f"{prefix}input_layernorm.weight", hidden),
            post_norm=self.tensor(f"{prefix}post_attention_layernorm.weight", hidden),
            query_norm=self.tensor(f"{attention}q_norm.weight", head_dim) if has_norms else None,
            key_norm=self.tensor(f"{attention}k_norm.weight", head_dim) if has_norms else None,
            qkv=self._stack(qkv, hidden),
            qkv_bias=self._bias(qkv) if spec.attention_bias else None,
            output=self._stack(output, query),
            output_bias=self._bias(output) if spec.attention_out_bias else None,
            gate_up=self._stack(gate_up, hidden),
            gate_up_bias=self._bias(gate_up) if spec.mlp_bias else None,
            down=self._stack(down, inner),
            down_bias=self._bias(down) if spec.mlp_bias else None,
        )

    def _stack(self, rows: dict[str, int], columns: int) -> torch.Tensor:
        return torch.cat([self.tensor(f"{n}.weight", size, columns) for n, size in rows.items()])

    def _bias(self, rows: dict[str, int]) -> torch.Tensor:
        return torch.cat([self.tensor(f"{name}.bias", size) for name, size in rows.items()])
