"""The training objective (arXiv 2607.05147, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from specsched_kernels.draft_loss import draft_loss

from specsched_executor.training.corpus import TrainingBatch
from specsched_executor.training.network import BlockInputs, TrainableDrafter
from specsched_executor.training.options import LossWeights
from specsched_executor.training.target import TrainingTarget

__all__ = ["BlockRows", "LossTerms", "block_rows", "training_loss"]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """All rows of the blocks of a batch, n = S * A * k.

    hidden: [n, hidden] of the drafter. target_hidden: [n, hidden], normed, of the target at the
    row's position. previous_ids, label_ids: int64 [n], the tokens before and at the one predicted.
    has_label: bool [n]. offset: int64 [n], the row's place in its block.
    """

    hidden: torch.Tensor
    target_hidden: torch.Tensor
    previous_ids: torch.Tensor
    label_ids: torch.Tensor
    has_label: torch.Tensor
    offset: torch.Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """loss: scalar to minimise. The others, float32 [n], are for the eye, where has_label."""

    loss: torch.Tensor
    cross_entropy: torch.Tensor
    acceptance: torch.Tensor
    confidence: torch.Tensor
    has_label: torch.Tensor


def block_rows(
    network: TrainableDrafter, target: TrainingTarget, batch: TrainingBatch
) -> BlockRows:
    """Run target and drafter over a batch."""
    config = network.config
    states = target.sequences(batch.token_ids, config.target_layer_ids)
    offset = torch.arange(config.block_size, device=batch.anchors.device)
    last = batch.token_ids.shape[1] - 1
    positions = batch.anchors[:, :, None] + offset
    index = positions.clamp(max=last).flatten(1)
    labels = (positions + 1).clamp(max=last).flatten(1)
    hidden_index = index[:, :, None].expand(-1, -1, states.final.shape[-1])
    hidden = network(
        BlockInputs(states.features, batch.token_ids.gather(1, batch.anchors), batch.anchors)
    )
    return BlockRows(
        hidden=hidden.flatten(0, 2),
        target_hidden=states.final.gather(1, hidden_index).flatten(0, 1),
        previous_ids=batch.token_ids.gather(1, index).flatten(),
        label_ids=batch.token_ids.gather(1, labels).flatten(),
        has_label=(offset < batch.num_labels[:, :, None]).flatten(),
        offset=offset.expand_as(positions).flatten(),
    )


def training_loss(
    network: TrainableDrafter, target: TrainingTarget, batch: TrainingBatch, weights: LossWeights
) -> LossTerms:
    """Weighted mean over the rows that have a label, those of row k weighing exp(-k / decay).

    cross_entropy * CE(token) + distance * sum |q - p| + confidence * BCE(c, 1 - sum |q - p| / 2),
    p the target's distribution at temperature 1, q the draft's.
    """
    rows = block_rows(network, target, batch)
    row_weight = torch.exp(-rows.offset / weights.decay) * rows.has_label
    markov = network.markov(rows.previous_ids)
    head_loss, cross_entropy, distance = _HeadLoss.apply(
        rows.hidden,
        markov,
        network.parameter("markov_head.markov_w2.weight"),
        target.head,
        rows.target_hidden,
        rows.label_ids,
        weights.cross_entropy * row_weight,
        weights.distance * row_weight,
    )  # type: ignore[no-untyped-call]
    acceptance = (1.0 - distance / 2).clamp(0.0, 1.0)
    logits = network.confidence_logits(rows.hidden, markov)
    errors = F.binary_cross_entropy_with_logits(logits, acceptance, reduction="none")
    total = head_loss + weights.confidence * (errors * row_weight).sum()
    loss = total / row_weight.sum().clamp(min=1e-6)
    confidence = logits.detach().sigmoid()
    return LossTerms(loss, cross_entropy, acceptance, confidence, rows.has_label)


class _HeadLoss(torch.autograd.Function):
    """Sum of the weighted losses by hidden states, Markov codes and W2, without keeping logits.

    Draft logits are [head | W2] [h; W1 x]. The matrix products run in float16 on CUDA, whose
    logits are 8 times finer than bfloat16's; gradients in bfloat16.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd passes them
        ctx: Any,
        hidden: torch.Tensor,
        markov: torch.Tensor,
        markov_out: torch.Tensor,
        head: torch.Tensor,
        target_hidden: torch.Tensor,
        label_ids: torch.Tensor,
        ce_weights: torch.Tensor,
        l1_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype = torch.float16 if hidden.is_cuda else torch.float32
        wide = torch.cat((head.to(dtype), markov_out.to(dtype)), dim=1)
        states = torch.cat((hidden, markov), dim=1)
        logits = states.to(dtype) @ wide.T
        target_logits = target_hidden.to(dtype) @ head.to(dtype).T
        cross_entropy, distance, gradient = draft_loss(
            logits, target_logits, label_ids, ce_weights.float(), l1_weights.float()
        )
        states_gradient = gradient @ wide.to(gradient.dtype)
        out_gradient = gradient.T @ markov.to(gradient.dtype)
        ctx.save_for_backward(states_gradient, out_gradient)
        ctx.split = (hidden.shape[1], hidden.dtype)
        ctx.mark_non_differentiable(cross_entropy, distance)
        loss = (cross_entropy * ce_weights + distance * l1_weights).sum()
        return loss, cross_entropy, distance

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states_gradient, out_gradient = ctx.saved_tensors
        hidden_size, dtype = ctx.split
        scaled = (states_gradient * gradients[0]).to(dtype)
        hidden, markov = scaled[:, :hidden_size], scaled[:, hidden_size:]
        return hidden, markov, out_gradient.float() * gradients[0], *(None,) * 5
