"""What the target's own probabilities were, for whoever asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specsched_executor.core import TokenLogprobs

__all__ = ["RowLogprobs", "token_logprobs"]

_ROWS_AT_ONCE = 64
"""Bounds the temporary memory to so many rows of the vocabulary."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Natural logarithms of the target's own probabilities in m rows.

    chosen: float32 [m], of the row's token. top_ids int64, top float32 [m, n]: of the likeliest n.
    NaN where a row holds NaN or infinity.
    """

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> RowLogprobs:
        """logits: float32 [m, V]; token_ids: int64 [m]. Nothing is read back."""
        normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
        normalizer = normalizer.masked_fill(~normalizer.isfinite(), torch.nan)
        top = torch.topk(logits, min(num_top, logits.shape[1]), dim=-1)
        chosen = (logits.gather(1, token_ids[:, None]) - normalizer)[:, 0]
        return cls(chosen, top.indices, top.values - normalizer)

    def to_host(self) -> RowLogprobs:
        """A copy in pinned memory, complete when the stream has come to it."""
        return RowLogprobs(*(_to_host(each) for each in (self.chosen, self.top_ids, self.top)))

    def told(self, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Each row as it is told, with so many alternatives; waits where the device has them."""
        chosen, top_ids, top = self.chosen.tolist(), self.top_ids.tolist(), self.top.tolist()
        return [
            TokenLogprobs(logprob, tuple(ids[:num]), tuple(values[:num]))
            for logprob, ids, values, num in zip(chosen, top_ids, top, num_top, strict=True)
        ]


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
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    return RowLogprobs.of(logits, chosen, max(num_top)).told(num_top)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
