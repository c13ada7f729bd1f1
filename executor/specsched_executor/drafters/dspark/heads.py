"""Tokens and confidences from a block's hidden states, left to right.

Position j draws from softmax((U_j + W2 W1 x_{j-1}) / temperature), U the frozen head's logits, and
is confident by sigmoid(w [h_j; W1 x_{j-1}] + b): known before token j is (arXiv 2607.05147,
sections 3.1 and 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specsched_kernels.cpu.draw_drafts import draw_drafts
from specsched_kernels.cpu.threads import num_workers

from specsched_executor.drafters.dspark.checkpoint import DSparkCheckpoint
from specsched_executor.model.linear import Linear, LinearFactory
from specsched_executor.sampling import Purpose, keyed_uniforms

__all__ = ["BlockDraft", "DrawKeys", "SequentialHeads"]


@dataclass(frozen=True, slots=True)
class DrawKeys:
    """What decides a draft besides the model: int64 seeds, positions [R] of the first token,
    float32 temperatures [R] (0: the likeliest token), the step that drafts."""

    seeds: torch.Tensor
    positions: torch.Tensor
    temperatures: torch.Tensor
    step_id: int


@dataclass(frozen=True, slots=True)
class BlockDraft:
    """token_ids: int64 [R, n]. confidence: float32 [R, n]. distribution: float32 [R, n, V] that
    tokens were drawn from, None where nobody draws."""

    token_ids: torch.Tensor
    confidence: torch.Tensor
    distribution: torch.Tensor | None


class SequentialHeads:
    """Markov head and confidence head over the target's output head."""

    def __init__(
        self, checkpoint: DSparkCheckpoint, lm_head: Linear, make_linear: LinearFactory
    ) -> None:
        tensors = checkpoint.tensors
        self._lm_head = lm_head
        self._codes = tensors["markov_head.markov_w1.weight"].float()
        self._bias_of = make_linear(tensors["markov_head.markov_w2.weight"].float())
        weight = tensors["confidence_head.proj.weight"].float()[0]
        hidden_size = checkpoint.config.hidden_size
        self._hidden_weight, self._code_weight = weight[:hidden_size], weight[hidden_size:]
        self._confidence_bias = tensors["confidence_head.proj.bias"].float()

    def draft(self, hidden: torch.Tensor, anchor_ids: torch.Tensor, keys: DrawKeys) -> BlockDraft:
        """Draft n tokens of each request; hidden: float32 [R, n, H], anchor_ids: int64 [R]."""
        num_requests, num_tokens, _ = hidden.shape
        base = self._lm_head(hidden.flatten(0, 1).contiguous())
        base = base.view(num_requests, num_tokens, -1)
        draws, distribution = keys.temperatures > 0, None
        if draws.any():
            # Rows of requests that do not draw stay as they are.
            distribution = (torch.empty if draws.all() else torch.zeros)(base.shape)
        uniforms = keyed_uniforms(
            keys.seeds[:, None],
            keys.positions[:, None] + torch.arange(num_tokens),
            Purpose.DRAFT,
            keys.step_id,
        )
        token_ids = torch.empty(num_requests, num_tokens, dtype=torch.int64)
        confidence = torch.empty(num_requests, num_tokens)
        workers = num_workers(base[:, 0].numel())
        previous = anchor_ids
        for j in range(num_tokens):
            code = self._codes[previous]
            score = hidden[:, j] @ self._hidden_weight + code @ self._code_weight
            confidence[:, j] = torch.sigmoid(score + self._confidence_bias)
            draw_drafts(
                base.numpy(),
                self._bias_of(code).numpy(),
                keys.temperatures.numpy(),
                uniforms.numpy(),
                j,
                token_ids.numpy(),
                None if distribution is None else distribution.numpy(),
                workers,
            )
            previous = token_ids[:, j]
        return BlockDraft(token_ids, confidence, distribution)
