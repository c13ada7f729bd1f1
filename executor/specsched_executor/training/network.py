"""The drafter as it is trained: blocks at many anchors of whole sequences at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.drafters.dspark.layout import tensor_shapes
from specsched_executor.model.rope import cos_sin_table, rope_frequencies

__all__ = ["BlockInputs", "TrainableDrafter"]

_INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class BlockInputs:
    """features: [S, T, L * hidden] of the target. anchor_ids, anchors: int64 [S, A], tokens and
    their positions."""

    features: torch.Tensor
    anchor_ids: torch.Tensor
    anchors: torch.Tensor


class TrainableDrafter(nn.Module):
    """float32 parameters under their names in the checkpoint; computes in `dtype`.

    A block is [anchor, mask, ..., mask] at positions a .. a + k - 1; row i predicts token
    a + i + 1. Its rows see each other and the context, the target's hidden states at the `window`
    positions strictly before a, whose keys and values come from the same projections.
    """

    def __init__(self, config: DSparkConfig, embedding: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self._dtype = dtype
        self._names: dict[str, str] = {}
        for name, shape in tensor_shapes(config).items():
            parameter = nn.Parameter(_initial(name, shape))
            self._names[name] = name.replace(".", "_")
            self.register_parameter(self._names[name], parameter)
        self.register_buffer("_embedding", embedding.to(dtype), persistent=False)
        frequencies = rope_frequencies(config.head_dim, config.rope_theta, None)
        table = cos_sin_table(frequencies, config.max_positions)
        self.register_buffer("_cos_sin", table, persistent=False)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters, float32, by checkpoint name."""
        return {name: self._parameters[key].data for name, key in self._names.items()}  # type: ignore[union-attr]

    def parameter(self, name: str) -> nn.Parameter:
        """The parameter of this checkpoint name."""
        parameter = self._parameters[self._names[name]]
        assert parameter is not None  # noqa: S101 - registered above
        return parameter

    def weight(self, name: str) -> torch.Tensor:
        """The parameter in the dtype of the computation."""
        return self.parameter(name).to(self._dtype)

    def forward(self, inputs: BlockInputs) -> torch.Tensor:
        """Normed hidden states [S, A, k, hidden]."""
        config = self.config
        context = self._norm(F.linear(inputs.features, self.weight("fc.weight")), "hidden_norm")
        num_tokens = context.shape[1]
        is_hidden = _hidden_context(inputs.anchors, num_tokens, config.window)
        block = torch.arange(config.block_size, device=inputs.anchors.device)
        block_positions = inputs.anchors[:, :, None] + block
        context_positions = torch.arange(num_tokens, device=inputs.anchors.device)
        ids = inputs.anchor_ids[:, :, None].expand_as(block_positions)
        ids = torch.where(block == 0, ids, config.mask_token_id)
        hidden = F.embedding(ids, self._embedding)  # type: ignore[arg-type]
        for layer in range(config.num_layers):
            prefix = f"layers.{layer}."
            normed = self._norm(hidden, f"{prefix}input_layernorm")
            query, key, value = self._project(f"{prefix}self_attn.", normed, block_positions)
            context_key, context_value = self._project_context(
                f"{prefix}self_attn.", context, context_positions
            )
            attended = _attend(query, (context_key, context_value), (key, value), is_hidden)
            hidden = hidden + F.linear(attended, self.weight(f"{prefix}self_attn.o_proj.weight"))
            normed = self._norm(hidden, f"{prefix}post_attention_layernorm")
            gate = F.linear(normed, self.weight(f"{prefix}mlp.gate_proj.weight"))
            up = F.linear(normed, self.weight(f"{prefix}mlp.up_proj.weight"))
            down = self.weight(f"{prefix}mlp.down_proj.weight")
            hidden = hidden + F.linear(F.silu(gate) * up, down)
        return self._norm(hidden, "norm")

    def markov(self, previous_ids: torch.Tensor) -> torch.Tensor:
        """W1 x_{k-1}: [..., rank]."""
        return F.embedding(previous_ids, self.weight("markov_head.markov_w1.weight"))

    def confidence_logits(self, hidden: torch.Tensor, markov: torch.Tensor) -> torch.Tensor:
        """w [h_k; W1 x_{k-1}] + b, float32 [...]."""
        weight = self.parameter("confidence_head.proj.weight")
        bias = self.parameter("confidence_head.proj.bias")
        return F.linear(torch.cat((hidden, markov), dim=-1).float(), weight, bias)[..., 0]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weight(f"{name}.weight")
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _project(
        self, prefix: str, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        key, value = self._project_context(prefix, x, positions)
        query = self._heads(f"{prefix}q_proj.weight", x)
        return self._rotated(query, f"{prefix}q_norm", positions), key, value

    def _project_context(
        self, prefix: str, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = self._heads(f"{prefix}k_proj.weight", x)
        value = self._heads(f"{prefix}v_proj.weight", x)
        return self._rotated(key, f"{prefix}k_norm", positions), value

    def _heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(F.linear(x, self.weight(name)), -1, (-1, self.config.head_dim))

    def _rotated(self, heads: torch.Tensor, norm: str, positions: torch.Tensor) -> torch.Tensor:
        if self.config.qk_norm:
            heads = self._norm(heads, norm)
        cos, sin = self._cos_sin[positions][..., None, :].chunk(2, dim=-1)  # type: ignore[index]
        first, second = heads.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.to(self._dtype)


def _initial(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(shape)
    # The Markov bias and the confidence begin at zero, everything else small and random.
    if name.endswith(("markov_w2.weight", "bias")) or name.startswith("confidence_head"):
        return torch.zeros(shape)
    return torch.randn(shape) * _INIT_STD


def _hidden_context(anchors: torch.Tensor, num_tokens: int, window: int | None) -> torch.Tensor:
    """bool [S, A, T]: context positions that the block of an anchor does not see."""
    position = torch.arange(num_tokens, device=anchors.device)
    outside = position >= anchors[:, :, None]
    if window is not None:
        outside |= position < anchors[:, :, None] - window
    return outside


def _attend(
    query: torch.Tensor,
    context: tuple[torch.Tensor, torch.Tensor],
    block: tuple[torch.Tensor, torch.Tensor],
    is_hidden: torch.Tensor,
) -> torch.Tensor:
    """[S, A, k, H * D]: attention of queries [S, A, k, H, D] over context [S, T, Hkv, D] and their
    own block [S, A, k, Hkv, D]."""
    num_sequences, num_anchors, k, num_heads, head_dim = query.shape
    num_kv_heads, num_tokens = context[0].shape[2], context[0].shape[1]
    group = num_heads // num_kv_heads
    query = torch.unflatten(query, 3, (num_kv_heads, group)).permute(0, 3, 1, 2, 4, 5)
    query = query.reshape(num_sequences, num_kv_heads, num_anchors, k * group, head_dim)
    query = query * head_dim**-0.5
    keys, values = (x.permute(0, 2, 1, 3) for x in context)
    own_keys, own_values = (x.permute(0, 3, 1, 2, 4) for x in block)
    scores = torch.matmul(query.flatten(2, 3), keys.transpose(-1, -2))
    scores = torch.unflatten(scores, 2, (num_anchors, k * group))
    scores = scores.masked_fill(is_hidden[:, None, :, None, :], -torch.inf)
    own = torch.matmul(query, own_keys.transpose(-1, -2))
    weights = torch.cat((scores, own), dim=-1).softmax(dim=-1)
    shared, alone = torch.split(weights, [num_tokens, k], dim=-1)
    out = torch.matmul(shared.flatten(2, 3), values)
    out = torch.unflatten(out, 2, (num_anchors, k * group)) + torch.matmul(alone, own_values)
    out = torch.unflatten(out, 3, (k, group)).permute(0, 2, 3, 1, 4, 5)
    return out.reshape(num_sequences, num_anchors, k, num_heads * head_dim)
