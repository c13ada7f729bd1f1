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
from specsched_executor.engine.logprobs import LogprobsOf, PromptRows
from specsched_executor.sampling import RowLogprobs

__all__ = ["ToldLogprobs", "WantedLogprobs"]


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

    def output_logits(
        self, logits: torch.Tensor, logit_start_loc: torch.Tensor, rows_each: int
    ) -> torch.Tensor:
        """Logits of the requests that want their outputs told, before any rule changes them.

        logits: float32 [m, V]. Rows past a request's own hold what belongs to nobody.
        """
        entries = _on(logits.device, list(self.outputs))
        offsets = torch.arange(rows_each, device=logits.device)
        rows = (logit_start_loc[entries].long()[:, None] + offsets).clamp(max=len(logits) - 1)
        return logits[rows.flatten()]

    def tell_outputs(
        self, output_logits: torch.Tensor, token_ids: torch.Tensor
    ) -> RowLogprobs | None:
        """Of token_ids, int64 [R, k+1], of the requests that want them: k+1 rows each."""
        if not self.outputs:
            return None
        chosen = token_ids[_on(token_ids.device, list(self.outputs))]
        return RowLogprobs.of(output_logits, chosen.flatten(), max(self.outputs.values()))

    def tell_prompts(self, logits: torch.Tensor) -> RowLogprobs | None:
        """Of the prompt tokens after the rows of `prompt_rows`; logits: float32 [n, V]."""
        if not self.prompts.rows:
            return None
        chosen = _on(logits.device, self.prompts.token_ids)
        return RowLogprobs.of(logits, chosen, max(self.prompts.num_top))


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
        wanted = self.wanted.outputs
        per_request = len(self.outputs.chosen) // len(wanted)
        told = self.outputs.told([num for num in wanted.values() for _ in range(per_request)])
        firsts = range(0, len(told), per_request)
        return {
            index: told[first : first + int(num_accepted[index]) + 1]
            for index, first in zip(wanted, firsts, strict=True)
        }

    def of_prompts(self) -> LogprobsOf:
        """Of the prompt tokens of each request that this step passed."""
        told: dict[int, list[TokenLogprobs]] = {}
        if self.prompts is not None:
            rows = self.prompts.told(self.wanted.prompts.num_top)
            for index, row in zip(self.wanted.prompts.entry_indexes, rows, strict=True):
                told.setdefault(index, []).append(row)
        return told


def _on(device: torch.device, values: list[int]) -> torch.Tensor:
    """int64, without waiting for what the device does."""
    made = torch.tensor(values, dtype=torch.int64)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made
