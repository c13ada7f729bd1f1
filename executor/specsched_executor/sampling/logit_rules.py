"""Rules on logits that hold before anything is sampled.

A row of logits that follows j drafts is treated as if those drafts were output already. It is used
only where all of them were accepted, so what is sampled from it is what would have been sampled
without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import SamplingParams

__all__ = [
    "LogitRules",
    "alters_logits",
    "has_logit_rules",
    "has_penalties",
    "suppress_early_stops",
]

TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]

_MAX_ADDED_PENALTY = 0.1
_MAX_REPETITION_RATIO = 1.05
"""Penalties up to these leave the likeliest token what it was nearly always."""


def suppress_early_stops(logits: torch.Tensor, token_ids: Sequence[int]) -> None:
    """Make tokens that would end the output impossible, in place. logits: float32 [m, V]."""
    logits[:, list(token_ids)] = -torch.inf


def has_penalties(params: SamplingParams) -> bool:
    """Whether a request's logits depend on the tokens before."""
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def has_logit_rules(params: SamplingParams) -> bool:
    """Whether a request's logits are changed, for the whole of its output, before it samples."""
    return bool(params.logit_bias) or has_penalties(params)


def alters_logits(params: SamplingParams) -> bool:
    """Whether a request's logits are changed so far that acceptance of its drafts means little.

    Temperature, top-k, top-p and min-p are how it samples, not what the target says.
    """
    repetition = max(params.repetition_penalty, 1.0 / params.repetition_penalty)
    return (
        bool(params.logit_bias)
        or repetition > _MAX_REPETITION_RATIO
        or abs(params.presence_penalty) > _MAX_ADDED_PENALTY
        or abs(params.frequency_penalty) > _MAX_ADDED_PENALTY
    )


class LogitRules:
    """Logit bias, penalties and min-p of one request, in this order.

    That is vLLM's order (its v1 sampler: logit bias, then repetition, frequency and presence
    penalty, then temperature, then min-p, then top-k and top-p), with vLLM's meaning: repetition
    counts prompt and output, frequency and presence the output only. Min-p keeps tokens of at least
    min_p times the largest probability at the request's temperature:
    logit >= largest + temperature * ln(min_p). A greedy request has no use for it.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._params = params
        self._bias_token_ids = [token_id for token_id, _ in params.logit_bias]
        self._bias = torch.tensor([bias for _, bias in params.logit_bias])
        self._seen = _SeenTokens(num_prompt_tokens) if has_penalties(params) else None
        # Of what is below the largest logit: -inf for min_p 0, which keeps all.
        self._min_p_margin = params.temperature * math.log(params.min_p) if params.min_p else None

    @classmethod
    def of(cls, params: SamplingParams, num_prompt_tokens: int) -> LogitRules | None:
        """The rules of a request; None where it has none, so that it pays nothing."""
        has_min_p = params.min_p > 0 and params.temperature > 0
        if not (has_min_p or has_logit_rules(params)):
            return None
        return cls(params, num_prompt_tokens)

    def apply(self, logits: torch.Tensor, tokens: TokenIds, drafts: Sequence[int]) -> None:
        """Change the rows of one request in place.

        logits: float32 [len(drafts) + 1, V], row j following `tokens` and drafts 0..j-1. tokens:
        prompt and output so far, which only ever grows from call to call.
        """
        if self._bias_token_ids:
            logits[:, self._bias_token_ids] += self._bias.to(logits.device)
        if self._seen is not None:
            self._seen.extend(tokens)
            self._penalize(logits, self._seen, drafts)
        if self._min_p_margin is not None:
            lowest = logits.amax(dim=-1, keepdim=True) + self._min_p_margin
            logits.masked_fill_(logits < lowest, -torch.inf)

    def _penalize(self, logits: torch.Tensor, seen: _SeenTokens, drafts: Sequence[int]) -> None:
        token_ids, counts, is_seen = seen.with_drafts(drafts)
        token_ids, counts = token_ids.to(logits.device), counts.to(logits.device)
        values = logits[:, token_ids]
        repetition = self._params.repetition_penalty
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(is_seen.to(logits.device), repeated, values)
        values -= self._params.frequency_penalty * counts
        values -= self._params.presence_penalty * (counts > 0)
        logits[:, token_ids] = values


class _SeenTokens:
    """The distinct tokens of a growing sequence, and how often each is in its output."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._place: dict[int, int] = {}
        self._counts: list[int] = []

    def extend(self, tokens: TokenIds) -> None:
        """Count what is new since the last call."""
        new = np.asarray(tokens[self._num_tokens :]).tolist()
        for position, token_id in enumerate(new, start=self._num_tokens):
            place = self._place.setdefault(token_id, len(self._place))
            if place == len(self._counts):
                self._counts.append(0)
            self._counts[place] += position >= self._num_prompt_tokens
        self._num_tokens = len(tokens)

    def with_drafts(self, drafts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of u distinct tokens: ids int64 [u], counts float32 [m, u], is_seen bool [m, u].

        Row j of m = len(drafts) + 1 takes drafts 0..j-1 for output.
        """
        new = [token_id for token_id in dict.fromkeys(drafts) if token_id not in self._place]
        token_ids = torch.tensor([*self._place, *new], dtype=torch.int64)
        counts = torch.tensor(self._counts + [0] * len(new), dtype=torch.float32)
        is_draft = torch.tensor(drafts, dtype=torch.int64)[:, None] == token_ids[None, :]
        drafted = torch.zeros(len(drafts) + 1, len(token_ids))
        torch.cumsum(is_draft.float(), dim=0, out=drafted[1:])
        is_seen = torch.arange(len(token_ids)) < len(self._place)
        return token_ids, counts + drafted, is_seen | (drafted > 0)
