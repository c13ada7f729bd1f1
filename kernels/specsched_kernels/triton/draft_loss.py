"""Device code of `draft_loss`: one program per row, which reads its two rows of logits thrice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["draft_loss"]

_BLOCK = 4096
_NUM_WARPS = 8


def draft_loss(
    draft_logits: torch.Tensor,
    target_logits: torch.Tensor,
    labels: torch.Tensor,
    ce_weights: torch.Tensor,
    l1_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `specsched_kernels.draft_loss`; both logits are float16 and contiguous."""
    num_rows, vocab_size = draft_logits.shape
    cross_entropy = torch.empty(num_rows, dtype=torch.float32, device=draft_logits.device)
    distance = torch.empty_like(cross_entropy)
    gradient = draft_logits.view(torch.bfloat16)
    block = min(_BLOCK, triton.next_power_of_2(vocab_size))
    _draft_loss_kernel[(num_rows,)](
        draft_logits,
        target_logits,
        labels,
        ce_weights,
        l1_weights,
        cross_entropy,
        distance,
        gradient,
        VOCAB=vocab_size,
        BLOCK=block,
        num_warps=_NUM_WARPS,
    )
    return cross_entropy, distance, gradient


@triton.jit
def _draft_loss_kernel(
    draft_ptr,
    target_ptr,
    label_ptr,
    ce_weight_ptr,
    l1_weight_ptr,
    ce_ptr,
    distance_ptr,
    gradient_ptr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    draft_ptr += row * VOCAB
    target_ptr += row * VOCAB
    gradient_ptr += row * VOCAB
    label = tl.load(label_ptr + row)
    label_logit = tl.load(draft_ptr + label).to(tl.float32)
    draft_log_sum = _log_sum(draft_ptr, lane, VOCAB, BLOCK)
    target_log_sum = _log_sum(target_ptr, lane, VOCAB, BLOCK)
    distance = tl.zeros([BLOCK], tl.float32)
    mean_sign = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        draft, sign, difference = _compare(
            draft_ptr, target_ptr, start + lane, draft_log_sum, target_log_sum, VOCAB
        )
        distance += tl.abs(difference)
        mean_sign += draft * sign
    total_sign = tl.sum(mean_sign, axis=0)
    ce_weight = tl.load(ce_weight_ptr + row)
    l1_weight = tl.load(l1_weight_ptr + row)
    for start in range(0, VOCAB, BLOCK):
        column = start + lane
        draft, sign, difference = _compare(
            draft_ptr, target_ptr, column, draft_log_sum, target_log_sum, VOCAB
        )
        gradient = draft * (l1_weight * (sign - total_sign) + ce_weight)
        gradient = tl.where(column == label, gradient - ce_weight, gradient)
        # The same threads have just read these addresses: the row's logits are not needed again.
        tl.store(gradient_ptr + column, gradient.to(tl.bfloat16), mask=column < VOCAB)
    tl.store(ce_ptr + row, draft_log_sum - label_logit)
    tl.store(distance_ptr + row, tl.sum(distance, axis=0))


@triton.jit
def _log_sum(logit_ptr, lane, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """log sum exp of a row; every lane keeps a running maximum of its own."""
    best = tl.full([BLOCK], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        column = start + lane
        logit = tl.load(logit_ptr + column, mask=column < VOCAB, other=-1.0e30).to(tl.float32)
        new_best = tl.maximum(best, logit)
        total = total * tl.exp(best - new_best) + tl.exp(logit - new_best)
        best = new_best
    top = tl.max(best, axis=0)
    return top + tl.log(tl.sum(total * tl.exp(best - top), axis=0))


@triton.jit
def _compare(draft_ptr, target_ptr, column, draft_log_sum, target_log_sum, VOCAB: tl.constexpr):
    """q, sign(q - p) and q - p at these columns; 0 past the vocabulary."""
    inside = column < VOCAB
    draft = tl.load(draft_ptr + column, mask=inside, other=float("-inf")).to(tl.float32)
    target = tl.load(target_ptr + column, mask=inside, other=float("-inf")).to(tl.float32)
    draft = tl.exp(draft - draft_log_sum)
    difference = draft - tl.exp(target - target_log_sum)
    sign = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0))
    return draft, sign, difference
