"""Log-probabilities of a step on a device, for the requests that asked for them.

Such a step runs eagerly: a captured one keeps no logits for those who come after it. Which rows are
told is known at launch, what they hold is read with the other outputs of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import TokenLogprobs
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.logprobs import LogprobsOf, PromptRows, are_finite

__all__ = ["RowLogprobs", "ToldLogprobs", "WantedLogprobs"]


@dataclass(frozen=True, slots=True)
class WantedLogprobs:
    """What a step is to tell.

    outputs: index in the batch -> alternatives of each output token. prompts: rows count from the
    first one of their request.
    """

    outputs: dict[int, int]
    prompts: PromptRows

    @classmethod
    def of(cls, batch: StepBatch) -> WantedLogprobs | None:
        """What the requests of `batch` asked for; None where that is nothing."""
        outputs = {
            index: num_top
            for index, (request, samples) in enumerate(
                zip(batch.requests, batch.samples.tolist(), strict=True)
            )
            if samples and (num_top := request.request.sampling.logprobs) is not None
        }
        prompts = PromptRows.of(batch, torch.zeros(len(batch.requests) + 1, dtype=torch.int64))
        return cls(outputs, prompts) if outputs or prompts.rows else None

    def prompt_rows(self, query_start_loc: torch.Tensor) -> torch.Tensor:
        """Rows of the target's batch that prompts are told from; query_start_loc: [R+1]."""
        entries, offsets = (
            _on(query_start_loc.device, values)
            for values in (self.prompts.entry_indexes, self.prompts.rows)
        )
        return query_start_loc[entries] + offsets

    def tell_outputs(
        self, logits: torch.Tensor, logit_start_loc: torch.Tensor, token_ids: torch.Tensor
    ) -> RowLogprobs | None:
        """Of token_ids, int64 [R, k+1], of the requests that want them: k+1 rows each.

        logits: float32 [m, V]. Rows past a request's own hold what belongs to nobody.
        """
        if not self.outputs:
            return None
        entries = _on(logits.device, list(self.outputs))
        chosen = token_ids[entries]
        offsets = torch.arange(chosen.shape[1], device=logits.device)
        rows = (logit_start_loc[entries].long()[:, None] + offsets).clamp(max=len(logits) - 1)
        return RowLogprobs.of(logits[rows.flatten()], chosen.flatten(), max(self.outputs.values()))

    def tell_prompts(self, logits: torch.Tensor) -> RowLogprobs | None:
        """Of the prompt tokens after the rows of `prompt_rows`; logits: float32 [n, V]."""
        if not self.prompts.rows:
            return None
        chosen = _on(logits.device, self.prompts.token_ids)
        return RowLogprobs.of(logits, chosen, max(self.prompts.num_top))


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

    def row(self, index: int, num_top: int) -> TokenLogprobs:
        """One row as it is told; host memory only."""
        return TokenLogprobs(
            float(self.chosen[index]),
            tuple(self.top_ids[index, :num_top].tolist()),
            tuple(self.top[index, :num_top].tolist()),
        )


@dataclass(frozen=True, slots=True)
class ToldLogprobs:
    """What a step tells, on the device or on the host."""

    wanted: WantedLogprobs
    outputs: RowLogprobs | None
    prompts: RowLogprobs | None

    def to_host(self) -> ToldLogprobs:
        """See RowLogprobs."""
        outputs, prompts = (
            None if each is None else each.to_host() for each in (self.outputs, self.prompts)
        )
        return ToldLogprobs(self.wanted, outputs, prompts)

    def of_outputs(self, num_accepted: npt.NDArray[np.int32]) -> LogprobsOf:
        """Of the committed tokens of each request: num_accepted int32 [R] + 1."""
        if self.outputs is None:
            return {}
        told, per_request = {}, len(self.outputs.chosen) // len(self.wanted.outputs)
        for place, (index, num_top) in enumerate(self.wanted.outputs.items()):
            first = place * per_request
            rows = range(first, first + int(num_accepted[index]) + 1)
            told[index] = [self.outputs.row(row, num_top) for row in rows]
        return told

    def of_prompts(self) -> LogprobsOf:
        """Of the prompt tokens of each request that this step passed."""
        told: dict[int, list[TokenLogprobs]] = {}
        if self.prompts is not None:
            of_rows = zip(
                self.wanted.prompts.entry_indexes, self.wanted.prompts.num_top, strict=True
            )
            for row, (index, num_top) in enumerate(of_rows):
                told.setdefault(index, []).append(self.prompts.row(row, num_top))
        return told

    def faulty_prompts(self) -> list[int]:
        """Indexes of requests whose prompt met logits that were not finite."""
        return [index for index, told in self.of_prompts().items() if not are_finite(told)]


def _on(device: torch.device, values: list[int]) -> torch.Tensor:
    """int64, without waiting for what the device does."""
    made = torch.tensor(values, dtype=torch.int64)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made


def _to_host(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
