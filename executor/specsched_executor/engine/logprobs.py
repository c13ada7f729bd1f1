"""Log-probabilities of a step's tokens, for the requests that asked for them.

They are taken from the logits as the target gave them, so before rules change those in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from specsched_executor.core import TokenLogprobs
from specsched_executor.engine.batch import StepBatch
from specsched_executor.sampling import token_logprobs

__all__ = ["LogprobsOf", "OutputRows", "PromptRows", "are_finite"]

LogprobsOf = Mapping[int, Sequence[TokenLogprobs]]
"""Index in the batch -> log-probabilities of that request's tokens, in order."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Prefill rows whose logits are wanted for the prompt token after each, at most a chunk's.

    rows: in the target's batch. entry_indexes, token_ids, num_top: of each row.
    """

    rows: list[int]
    entry_indexes: list[int]
    token_ids: list[int]
    num_top: list[int]

    @classmethod
    def of(cls, batch: StepBatch, query_start_loc: torch.Tensor) -> PromptRows:
        """Rows of tokens that were not told yet: a recomputed prompt is not told again."""
        wanted = cls([], [], [], [])
        for index, request in enumerate(batch.requests):
            if request.num_missing_prompt_logprobs:
                wanted._add(batch, index, int(query_start_loc[index]))
        return wanted

    def _add(self, batch: StepBatch, index: int, first_row: int) -> None:
        request, first_position = batch.requests[index], int(batch.first_positions[index])
        first = max(first_position, len(request.prompt_logprobs) - 1)
        last = first_position + int(batch.num_base_rows[index])
        for position in range(first, min(last, request.num_prompt_tokens - 1)):
            self.rows.append(first_row + position - first_position)
            self.entry_indexes.append(index)
            self.token_ids.append(request.request.prompt_token_ids[position + 1])
            self.num_top.append(request.request.sampling.prompt_logprobs or 0)

    def logprobs(self, logits: torch.Tensor) -> LogprobsOf:
        """Of each request; logits: float32 [len(rows), V]."""
        found: dict[int, list[TokenLogprobs]] = {}
        values = token_logprobs(logits, self.token_ids, self.num_top)
        for index, value in zip(self.entry_indexes, values, strict=True):
            found.setdefault(index, []).append(value)
        return found


@dataclass(frozen=True, slots=True)
class OutputRows:
    """A copy of the raw logits of the requests that want log-probabilities of their output.

    first_rows: index in the batch -> first row of that request in `logits`, float32 [m, V].
    """

    logits: torch.Tensor
    first_rows: dict[int, int]
    num_top: dict[int, int]

    @classmethod
    def keep(
        cls, batch: StepBatch, logits: torch.Tensor, logit_start_loc: Sequence[int]
    ) -> OutputRows:
        """Copy what is needed; logits: float32 [m, V] of the rows that are sampled from."""
        rows: list[int] = []
        kept = cls(logits[:0], {}, {})
        samples = batch.samples.tolist()
        for index, request in enumerate(batch.requests):
            num_top = request.request.sampling.logprobs
            if samples[index] and num_top is not None:
                kept.first_rows[index], kept.num_top[index] = len(rows), num_top
                rows += range(logit_start_loc[index], logit_start_loc[index + 1])
        return cls(logits[rows], kept.first_rows, kept.num_top) if rows else kept

    def logprobs(self, token_ids: torch.Tensor, num_accepted: torch.Tensor) -> LogprobsOf:
        """Of the committed tokens of each request: num_accepted int64 [R] + 1 of [R, k+1]."""
        rows: list[int] = []
        chosen: list[int] = []
        num_top: list[int] = []
        counts = {index: int(num_accepted[index]) + 1 for index in self.first_rows}
        for index, first_row in self.first_rows.items():
            rows += range(first_row, first_row + counts[index])
            chosen += token_ids[index, : counts[index]].tolist()
            num_top += [self.num_top[index]] * counts[index]
        values = iter(token_logprobs(self.logits[rows], chosen, num_top)) if rows else iter(())
        return {index: [next(values) for _ in range(count)] for index, count in counts.items()}


def are_finite(values: Sequence[TokenLogprobs]) -> bool:
    """Whether the logits that they came from were."""
    return not any(math.isnan(value.logprob) for value in values)
