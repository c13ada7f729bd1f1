"""Draft tokens left to right: a low-rank bias by the token before, then argmax or a draw."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import draw_drafts as reference

__all__ = ["DraftDraws", "MarkovBias", "draw_drafts"]

DraftDraws = reference.DraftDraws
MarkovBias = reference.MarkovBias


def draw_drafts(
    base_logits: torch.Tensor,
    anchor_ids: torch.Tensor,
    markov: MarkovBias,
    draws: DraftDraws | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Token ids int64 [R, n] of drafts of n tokens, each seeing the one before it.

    Position j has the logits base_logits[:, j] + W2 W1[token j - 1], the anchor for j = 0
    (arXiv 2607.05147, section 3.1). base_logits: float32 [R, n, V]; anchor_ids: int64 [R].
    The token is the first largest logit or, where `draws` says so, the inverse CDF, in order of
    token id, of softmax(logits / temperature) at the uniform keyed by (seed, position, step).
    `out` is int64 [R, n]. Nothing is read back and shapes alone fix the launches.

    Raises ValueError for a tensor of another shape or dtype.
    """
    device, (num_requests, num_tokens, vocab_size) = base_logits.device, base_logits.shape
    shape, int64 = (num_requests,), torch.int64
    if out is None:
        out = torch.empty((*shape, num_tokens), dtype=int64, device=device)
    check_tensor("out", out, (*shape, num_tokens), int64, device)
    check_tensor("base_logits", base_logits, tuple(base_logits.shape), torch.float32, device)
    check_tensor("anchor_ids", anchor_ids, shape, int64, device)
    markov.check(vocab_size, device)
    if draws is not None:
        draws.check(num_requests, num_tokens, vocab_size, device)
    if device.type == "cpu":
        reference.draw_drafts(base_logits, anchor_ids, markov, draws, out)
    else:
        from specsched_kernels.triton.draw_drafts import draw_drafts as launch

        launch(base_logits, anchor_ids, markov, draws, out)
    return out
