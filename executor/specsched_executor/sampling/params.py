"""How requests sample: checks at the door, tensors in the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specsched_executor.core import RequestError, SamplingParams

__all__ = [
    "MAX_BIASED_TOKENS",
    "MAX_LOGPROBS",
    "MAX_OUTPUTS",
    "MAX_STOP_TOKEN_IDS",
    "SamplingTensors",
    "validate_sampling",
]

MAX_BIASED_TOKENS = 1024
"""Tokens that logit_bias names at most: a table on the device has room for as many per request."""
MAX_STOP_TOKEN_IDS = 128
"""Likewise stop_token_ids. Both are vLLM's, in its GPU model runner."""

MAX_LOGPROBS = 20
"""Alternatives told per position at most: what the OpenAI API allows."""
MAX_OUTPUTS = 128
"""Outputs of one request at most."""
_MAX_BIAS = 100
_MAX_PENALTY = 2
_MAX_TEMPERATURE = torch.finfo(torch.float32).max
_MAX_COUNT = 2**32 - 1
"""What the fields of requests hold, and with room to spare the engine's columns."""
_REPETITION_RANGE = (0.01, 100)
"""Logits stay finite in float32, and no factor beyond it has a use."""


def validate_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestError, naming the value and what is accepted, for parameters out of range."""
    _check(
        0 <= params.temperature <= _MAX_TEMPERATURE,
        lambda: (
            f"temperature is {params.temperature}; accepted: 0 (greedy) or a positive number up to"
            f" {_MAX_TEMPERATURE:.3g}"
        ),
    )
    _check(
        0 < params.top_p <= 1,
        lambda: f"top_p is {params.top_p}; accepted: above 0 and at most 1 (1: no limit)",
    )
    _check(
        0 <= params.top_k <= _MAX_COUNT,
        lambda: f"top_k is {params.top_k}; accepted: 0 (no limit) to {_MAX_COUNT}",
    )
    _check(
        params.max_tokens is None or params.max_tokens >= 1,
        lambda: (
            f"max_tokens is {params.max_tokens}; accepted: 1 or more, or none for the whole context"
        ),
    )
    _check(
        0 <= params.min_tokens <= _MAX_COUNT,
        lambda: f"min_tokens is {params.min_tokens}; accepted: 0 to {_MAX_COUNT}",
    )
    _check(
        params.max_tokens is None or params.min_tokens <= params.max_tokens,
        lambda: (
            f"min_tokens is {params.min_tokens}; accepted: at most max_tokens ({params.max_tokens})"
        ),
    )
    _check_penalties(params, vocab_size)
    _check(
        1 <= params.n <= MAX_OUTPUTS,
        lambda: f"n is {params.n}; accepted: 1 to {MAX_OUTPUTS} outputs of a request",
    )
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if not (value is None or 0 <= value <= MAX_LOGPROBS):
            raise RequestError(
                f"{name} is {value}; accepted: 0 to {MAX_LOGPROBS} alternatives per token, or none"
            )
    _check("" not in params.stop, lambda: "stop holds an empty string; accepted: non-empty strings")
    _check(
        len(params.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
        lambda: (
            f"stop_token_ids has {len(params.stop_token_ids)} ids; accepted: at most"
            f" {MAX_STOP_TOKEN_IDS}"
        ),
    )
    for token_id in params.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"stop_token_ids holds {token_id}; accepted: 0 to {vocab_size - 1}")


def _check_penalties(params: SamplingParams, vocab_size: int) -> None:
    _check(0 <= params.min_p <= 1, lambda: f"min_p is {params.min_p}; accepted: 0 (no limit) to 1")
    _check(
        # Rounded: the wire carries float32, in which 0.01 is a little less.
        _REPETITION_RANGE[0] <= round(params.repetition_penalty, 6) <= _REPETITION_RANGE[1],
        lambda: (
            f"repetition_penalty is {params.repetition_penalty}; accepted:"
            f" {_REPETITION_RANGE[0]} to {_REPETITION_RANGE[1]} (1: none)"
        ),
    )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not -_MAX_PENALTY <= value <= _MAX_PENALTY:
            raise RequestError(
                f"{name} is {value}; accepted: -{_MAX_PENALTY} to {_MAX_PENALTY} (0: none)"
            )
    _check(
        len(params.logit_bias) <= MAX_BIASED_TOKENS,
        lambda: (
            f"logit_bias names {len(params.logit_bias)} tokens; accepted: at most"
            f" {MAX_BIASED_TOKENS}"
        ),
    )
    biased = [token_id for token_id, _ in params.logit_bias]
    _check(len(set(biased)) == len(biased), lambda: f"logit_bias names a token twice: {biased}")
    for token_id, bias in params.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"logit_bias holds token id {token_id}; accepted: 0 to {vocab_size - 1}"
            )
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise RequestError(
                f"logit_bias of token {token_id} is {bias}; accepted: -{_MAX_BIAS} to {_MAX_BIAS}"
            )


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Parameters of the requests of a step, [R] each.

    temperature float32 (0: greedy), top_k int64 (0: no limit), top_p float32 in (0, 1], seeds
    int64, keeps_own_sample bool (see `SamplingParams`).
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    seeds: torch.Tensor
    keeps_own_sample: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], seeds: Sequence[int]) -> SamplingTensors:
        """Gather the parameters of requests in batch order; `seeds` are the resolved ones."""
        return cls(
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32),
            seeds=torch.tensor(seeds, dtype=torch.int64),
            keeps_own_sample=torch.tensor([p.keeps_own_sample for p in params], dtype=torch.bool),
        )

    def rows(self, request_of_row: torch.Tensor) -> SamplingTensors:
        """The parameters of each row, given the request index int64 [m] it belongs to."""
        return SamplingTensors(
            temperature=self.temperature[request_of_row],
            top_k=self.top_k[request_of_row],
            top_p=self.top_p[request_of_row],
            seeds=self.seeds[request_of_row],
            keeps_own_sample=self.keeps_own_sample[request_of_row],
        )


def _check(condition: bool, complaint: Callable[[], str]) -> None:
    """complaint: only put together where it is needed, as nearly all requests are in order."""
    if not condition:
        raise RequestError(complaint())
