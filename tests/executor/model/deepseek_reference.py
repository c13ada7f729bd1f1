"""DeepSeek-V3.2 read from its definition: float64, no cache, attention masked to chosen tokens.

Shares no code with the executor. Weights go by their Hugging Face names and lie as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass
class Reference:
    """config: the object in config.json. quantizes: the indexer works in e4m3, as published.

    chosen: after `logits`, which tokens each row attends to, bool [n, n] by layer.
    """

    config: dict[str, Any]
    weights: Weights
    quantizes: bool = True
    chosen: list[Tensor] = field(default_factory=list)

    def logits(self, token_ids: Tensor) -> Tensor:
        """float64 [n, vocab] of a sequence."""
        self.chosen = []
        hidden = self._weight("model.embed_tokens")[token_ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            normed = self._rms_norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attention(normed, f"{name}.self_attn")
            normed = self._rms_norm(hidden, f"{name}.post_attention_layernorm")
            is_dense = layer < self.config["first_k_dense_replace"]
            part = self._mlp if is_dense else self._experts
            hidden = hidden + part(normed, f"{name}.mlp")
        return self._rms_norm(hidden, "model.norm") @ self._weight("lm_head").T

    def _weight(self, name: str) -> Tensor:
        return self.weights[f"{name}.weight"].double()

    def _rms_norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self._weight(name)

    # ===================== Attention =====================

    def _attention(self, x: Tensor, name: str) -> Tensor:
        c = self.config
        heads, nope, rotary = (
            c["num_attention_heads"],
            c["qk_nope_head_dim"],
            c["qk_rope_head_dim"],
        )
        compressed = self._rms_norm(x @ self._weight(f"{name}.q_a_proj").T, f"{name}.q_a_layernorm")
        query = (compressed @ self._weight(f"{name}.q_b_proj").T).view(len(x), heads, -1)
        latent = x @ self._weight(f"{name}.kv_a_proj_with_mqa").T
        rotary_key = self._pairs_rotated(latent[:, None, -rotary:])
        latent = self._rms_norm(latent[:, :-rotary], f"{name}.kv_a_layernorm")
        expanded = (latent @ self._weight(f"{name}.kv_b_proj").T).view(len(x), heads, -1)
        keys = torch.cat((expanded[..., :nope], rotary_key.expand(-1, heads, -1)), -1)
        query = torch.cat((query[..., :nope], self._pairs_rotated(query[..., nope:])), -1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self._softmax_scale()
        allowed = self._choose(x, compressed, f"{name}.indexer")
        self.chosen.append(allowed)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, expanded[..., nope:])
        return attended.flatten(1) @ self._weight(f"{name}.o_proj").T

    def _choose(self, x: Tensor, compressed: Tensor, name: str) -> Tensor:
        c, count = self.config, len(x)
        query = (compressed @ self._weight(f"{name}.wq_b").T).view(count, c["index_n_heads"], -1)
        key = x @ self._weight(f"{name}.wk").T
        key = (key - key.mean(-1, keepdim=True)) / (
            key.var(-1, correction=0, keepdim=True) + 1e-6
        ).sqrt()
        bias = self.weights[f"{name}.k_norm.bias"].double()
        key = key * self._weight(f"{name}.k_norm") + bias
        query, key = self._index_rotated(query), self._index_rotated(key[:, None])[:, 0]
        head_weights = x @ self._weight(f"{name}.weights_proj").T
        head_weights *= c["index_n_heads"] ** -0.5 * c["index_head_dim"] ** -0.5
        products = torch.einsum("qhd,kd->qhk", query, key).relu()
        scores = torch.einsum("qhk,qh->qk", products, head_weights)
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
        allowed = torch.zeros(count, count, dtype=torch.bool)
        for row in range(count):
            best = scores[row].sort(descending=True, stable=True).indices[: c["index_topk"]]
            allowed[row, best[best <= row]] = True
        return allowed

    def _index_rotated(self, x: Tensor) -> Tensor:
        """Rope of the first dimensions by halves, Hadamard's matrix, e4m3."""
        rotary, width = self.config["qk_rope_head_dim"], x.shape[-1]
        cos, sin = self._angles(len(x))
        first, second = x[..., : rotary // 2], x[..., rotary // 2 : rotary]
        x = torch.cat(
            (first * cos - second * sin, second * cos + first * sin, x[..., rotary:]), dim=-1
        )
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < width:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
        x = x @ matrix / math.sqrt(width)
        return _through_e4m3(x) if self.quantizes else x

    def _pairs_rotated(self, x: Tensor) -> Tensor:
        """Rope of dimensions (2 i, 2 i + 1), left where they are."""
        cos, sin = self._angles(len(x))
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    def _rope(self) -> dict[str, Any]:
        return self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}

    def _angles(self, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin, [n, 1, rotary / 2]."""
        rope, dim = self._rope(), self.config["qk_rope_head_dim"]
        theta = rope.get("rope_theta") or self.config.get("rope_theta")
        frequencies = []
        for i in range(dim // 2):
            frequency = theta ** (-2 * i / dim)
            if "factor" in rope:
                original = rope["original_max_position_embeddings"]

                def place(turns: float, original: float = original) -> float:
                    return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

                low = max(math.floor(place(rope["beta_fast"])), 0)
                high = min(math.ceil(place(rope["beta_slow"])), dim - 1)
                slow = min(max((i - low) / (high - low), 0.0), 1.0)
                frequency = frequency / rope["factor"] * slow + frequency * (1 - slow)
            frequencies.append(frequency)
        angles = torch.arange(count).double()[:, None] * torch.tensor(frequencies).double()
        return angles.cos()[:, None], angles.sin()[:, None]

    def _softmax_scale(self) -> float:
        c, rope = self.config, self._rope()
        scale = (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) ** -0.5
        if "factor" in rope:
            scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0) ** 2
        return scale

    # ===================== Feed-forward =====================

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = (x @ self._weight(f"{name}.{part}_proj").T for part in ("gate", "up"))
        return (gate * gate.sigmoid() * up) @ self._weight(f"{name}.down_proj").T

    def _experts(self, x: Tensor, name: str) -> Tensor:
        out = self._mlp(x, f"{name}.shared_experts")
        for row in range(len(x)):
            for expert, weight in self._routed(x[row], name):
                out[row] += weight * self._mlp(x[row : row + 1], f"{name}.experts.{expert}")[0]
        return out

    def _routed(self, x: Tensor, name: str) -> list[tuple[int, float]]:
        c = self.config
        scores = (self._weight(f"{name}.gate") @ x).sigmoid().tolist()
        corrections = self.weights[f"{name}.gate.e_score_correction_bias"].tolist()
        biased = [score + bias for score, bias in zip(scores, corrections, strict=True)]
        size = len(scores) // c["n_group"]
        groups = [range(size * g, size * (g + 1)) for g in range(c["n_group"])]
        groups.sort(key=lambda group: -sum(sorted((biased[e] for e in group), reverse=True)[:2]))
        allowed = [expert for group in groups[: c["topk_group"]] for expert in group]
        best = sorted(allowed, key=lambda expert: -biased[expert])[: c["num_experts_per_tok"]]
        total = sum(scores[expert] for expert in best) if c["norm_topk_prob"] else 1.0
        return [(e, scores[e] / total * c["routed_scaling_factor"]) for e in best]


def _through_e4m3(x: Tensor) -> Tensor:
    """Rounded to four significant bits under a scale by row that is a power of two."""
    peaks = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2((peaks / 448).log2().ceil())
    scaled = x / scale
    exponent = scaled.abs().clamp(min=2.0**-6).log2().floor()
    step = torch.exp2(exponent - 3)
    return (scaled / step).round() * step * scale
