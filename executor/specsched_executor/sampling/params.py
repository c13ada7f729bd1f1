"""How requests sample: checks at the door, tensors in the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specsched_executor.core import RequestError, SamplingParams

__all__ = ["SamplingTensors", "validate_sampling"]


def validate_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError, naming the value and what is accepted, for parameters out of range."""
    _check(
        math.isfinite(params.temperature) and params.temperature >= 0,
        f"temperature is {params.temperature}; accepted: 0 (greedy) or a positive number",
    )
    _check(
        0 < params.top_p <= 1,
        f"top_p is {params.top_p}; accepted: above 0 and at most 1 (1: no limit)",
    )
    _check(params.top_k >= 0, f"top_k is {params.top_k}; accepted: 0 (no limit) or more")
    _check(
        params.max_tokens is None or params.max_tokens >= 1,
        f"max_tokens is {params.max_tokens}; accepted: 1 or more, or none for the whole context",
    )
    _check(params.min_tokens >= 0, f"min_tokens is {params.min_tokens}; accepted: 0 or more")
    _check(
        params.max_tokens is None or params.min_tokens <= params.max_tokens,
        f"min_tokens is {params.min_tokens}; accepted: at most max_tokens ({params.max_tokens})",
    )
    _check("" not in params.stop, "stop holds an empty string; accepted: non-empty strings")
    for token_id in params.stop_token_ids:
        _check(
            0 <= token_id < vocab_size,
            f"stop_token_ids holds {token_id}; accepted: 0 to {vocab_size - 1}",
        )


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Parameters of the requests of a step, [R] each.

    temperature float32 (0: greedy), top_k int64 (0: no limit), top_p float32 in (0, 1], seeds
    int64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    seeds: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], seeds: Sequence[int]) -> SamplingTensors:
        """Gather the parameters of requests in batch order; `seeds` are the resolved ones."""
        return cls(
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
            seeds=torch.tensor(seeds, dtype=torch.int64),
        )

    def rows(self, request_of_row: torch.Tensor) -> SamplingTensors:
        """The parameters of each row, given the request index int64 [m] it belongs to."""
        return SamplingTensors(
            temperature=self.temperature[request_of_row],
            top_k=self.top_k[request_of_row],
            top_p=self.top_p[request_of_row],
            seeds=self.seeds[request_of_row],
        )


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)
