"""What the target's own probabilities were, for whoever asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specsched_executor.core import TokenLogprobs

__all__ = ["token_logprobs"]

_ROWS_AT_ONCE = 64
"""Bounds the temporary memory to so many rows of the vocabulary."""


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """The log-softmax of each row at its token, and of its num_top likeliest tokens.

    logits: float32 [m, V] as the target gave them; token_ids, num_top: m each. Values are NaN where
    a row holds NaN or infinity.
    """
    found: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        found += _of_block(logits[rows], token_ids[rows], num_top[rows])
    return found


def _of_block(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
    normalizer = normalizer.masked_fill(~normalizer.isfinite(), torch.nan)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    logprobs = (logits.gather(1, chosen) - normalizer)[:, 0].tolist()
    top = torch.topk(logits, min(max(num_top), logits.shape[1]), dim=-1)
    top_ids, top_logprobs = top.indices.tolist(), (top.values - normalizer).tolist()
    return [
        TokenLogprobs(logprob, tuple(ids[:num]), tuple(values[:num]))
        for logprob, ids, values, num in zip(logprobs, top_ids, top_logprobs, num_top, strict=True)
    ]
