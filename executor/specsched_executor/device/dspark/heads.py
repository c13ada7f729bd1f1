"""Tokens and confidences from a block's hidden states on a device; see drafters.dspark.heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.drafters.dspark import DSparkCheckpoint
from specsched_executor.model.linear import DeviceLinear, Linear
from specsched_executor.sampling import Purpose, draw, keyed_uniforms

__all__ = ["DeviceHeads", "Draws"]


@dataclass(frozen=True, slots=True)
class Draws:
    """How R requests draw: temperatures float32 [R] (0: the likeliest token), int64 seeds and
    positions [R] of the first token, step_id int64 [1]; out: float32 [S + 1, k, V], written at
    rows int64 [R]."""

    temperatures: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    step_id: torch.Tensor
    rows: torch.Tensor
    out: torch.Tensor


class DeviceHeads:
    """Markov head and confidence head over the output head; nothing is read back."""

    def __init__(self, checkpoint: DSparkCheckpoint, lm_head: Linear, like: torch.Tensor) -> None:
        tensors = {
            name: tensor.to(like.device, like.dtype)
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(("markov_head", "confidence_head"))
        }
        self._lm_head = lm_head
        self._codes = tensors["markov_head.markov_w1.weight"]
        self._bias_of = DeviceLinear(tensors["markov_head.markov_w2.weight"], widens=True)
        weight = checkpoint.tensors["confidence_head.proj.weight"].to(like.device).float()[0]
        hidden_size = checkpoint.config.hidden_size
        self._hidden_weight, self._code_weight = weight[:hidden_size], weight[hidden_size:]
        self._confidence_bias = tensors["confidence_head.proj.bias"].float()

    def draft(
        self, hidden: torch.Tensor, anchor_ids: torch.Tensor, draws: Draws | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [R, n] and confidences float32 [R, n]; hidden: [R, n, H]."""
        num_requests, num_tokens, _ = hidden.shape
        base = self._lm_head(hidden.flatten(0, 1)).view(num_requests, num_tokens, -1)
        scores = hidden.float() @ self._hidden_weight + self._confidence_bias
        tokens, confidences = [], []
        previous = anchor_ids
        for j in range(num_tokens):
            code = self._codes[previous]
            confidences.append(torch.sigmoid(scores[:, j] + code.float() @ self._code_weight))
            logits = base[:, j] + self._bias_of(code)
            previous = logits.argmax(dim=-1)
            if draws is not None:
                previous = _drawn(logits, previous, draws, j)
            tokens.append(previous)
        return torch.stack(tokens, dim=1), torch.stack(confidences, dim=1)


def _drawn(
    logits: torch.Tensor, likeliest: torch.Tensor, draws: Draws, position: int
) -> torch.Tensor:
    """Tokens of the requests that draw; the others keep the likeliest."""
    is_drawing = draws.temperatures > 0
    temperatures = torch.where(is_drawing, draws.temperatures, 1.0)
    distribution = torch.softmax(logits / temperatures[:, None], dim=-1)
    draws.out[draws.rows, position] = distribution
    uniforms = keyed_uniforms(draws.seeds, draws.positions + position, Purpose.DRAFT, draws.step_id)
    return torch.where(is_drawing, draw(distribution, uniforms), likeliest)
