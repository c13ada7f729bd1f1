"""The device part of a step: allocate, run the target, judge the drafts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation, allocate_verify_lens

from specsched_executor.core import KvCache, TargetModel, TargetOutput
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.drafts import DraftTable
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.inputs import BatchTensors, model_batch
from specsched_executor.engine.logprobs import LogprobsOf, OutputRows, PromptRows, are_finite
from specsched_executor.engine.slot_columns import SlotColumns
from specsched_executor.sampling import (
    VerificationInputs,
    suppress_early_stops,
    verify_drafts,
)

__all__ = ["Integers", "PassOutcome", "TargetPass"]

Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What the target made of a batch of R requests.

    Integers of any width: verify_lens [R]; token_ids [R, k+1], of which num_accepted [R] and one
    more are committed. faulty: bool [R]. num_rows: that the target ran. verify_ms: forward and
    sampling. logprobs: of the committed tokens, prompt_logprobs: of the next prompt tokens, where
    asked for. padded_num_rows: of the captured size that ran; None: exactly the rows.
    """

    verify_lens: Integers
    token_ids: Integers
    num_accepted: Integers
    faulty: npt.NDArray[np.bool_]
    num_rows: int
    output: TargetOutput
    verify_ms: float
    logprobs: LogprobsOf
    prompt_logprobs: LogprobsOf
    padded_num_rows: int | None = None


class TargetPass:
    """Runs batches through the target."""

    def __init__(
        self,
        model: TargetModel,
        kv_cache: KvCache,
        drafts: DraftTable,
        columns: SlotColumns,
        feature_layers: tuple[int, ...],
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._drafts = drafts
        self._columns = columns
        self._feature_layers = feature_layers

    # The model's logits are inference tensors: only in that mode may they be changed in place.
    @torch.inference_mode()
    def run(self, batch: StepBatch, tensors: BatchTensors, allowance: Allowance) -> PassOutcome:
        """Verify at most what `allowance` says, ranked by live confidences."""
        started = time.perf_counter()
        allocation = self._allocate(batch, tensors, allowance)
        draft_token_ids = self._drafts.token_ids(tensors.slot_ids)
        prompt_rows = PromptRows.of(batch, allocation.query_start_loc)
        output = self._model.forward(
            model_batch(
                tensors,
                self._columns,
                allocation,
                draft_token_ids,
                block_size=self._kv_cache.block_size,
                feature_layers=self._feature_layers,
                extra_logit_rows=prompt_rows.rows,
            ),
            self._kv_cache,
        )
        num_sampled_rows = int(allocation.logit_start_loc[-1])
        inputs = VerificationInputs(
            logits=output.logits[:num_sampled_rows],
            logit_start_loc=allocation.logit_start_loc.long(),
            verify_lens=allocation.verify_lens.long(),
            output_positions=tensors.output_positions,
            draft_token_ids=draft_token_ids,
            params=tensors.params,
            draft_distribution=self._drafts.distribution(tensors.slot_ids),
        )
        output_rows = OutputRows.keep(batch, inputs.logits, inputs.logit_start_loc.tolist())
        _apply_rules(batch, inputs, self._columns)
        verification = verify_drafts(inputs)
        prompt_logprobs = prompt_rows.logprobs(output.logits[num_sampled_rows:])
        for index, values in prompt_logprobs.items():
            verification.faulty[index] |= not are_finite(values)
        return PassOutcome(
            verify_lens=inputs.verify_lens.numpy(),
            token_ids=verification.token_ids.numpy(),
            num_accepted=verification.num_accepted.numpy(),
            faulty=verification.faulty.numpy(),
            num_rows=int(allocation.query_start_loc[-1]),
            output=output,
            verify_ms=(time.perf_counter() - started) * 1e3,
            logprobs=output_rows.logprobs(verification.token_ids, verification.num_accepted),
            prompt_logprobs=prompt_logprobs,
        )

    def _allocate(
        self, batch: StepBatch, tensors: BatchTensors, allowance: Allowance
    ) -> VerifyAllocation:
        budget = min(allowance.budget, batch.num_drafts, batch.max_draft_rows)
        return allocate_verify_lens(
            self._drafts.confidence(tensors.slot_ids, tensors.generations),
            tensors.num_draft_tokens,
            tensors.weights,
            budget,
            prior=self._drafts.prior(),
            start_positions=tensors.first_positions,
            padded_rows=batch.num_other_tokens + budget,
            max_verify_len=min(allowance.max_verify_len, self._drafts.max_draft_tokens),
            num_base_rows=tensors.num_base_rows,
            samples=tensors.samples,
        )


def _apply_rules(batch: StepBatch, inputs: VerificationInputs, columns: SlotColumns) -> None:
    """Change the logits of the requests that have rules, in place."""
    starts = inputs.logit_start_loc.tolist()
    samples = batch.samples.tolist()
    num_early_of = columns.num_held_off(batch.slot_ids).tolist()
    for index, request in enumerate(batch.requests):
        logits = inputs.logits[starts[index] : starts[index + 1]]
        if not samples[index]:
            continue
        if (num_early := num_early_of[index]) > 0:
            suppress_early_stops(logits[:num_early], sorted(request.stop_rules.token_ids))
        if request.logit_rules is not None:
            drafts = inputs.draft_token_ids[index, : len(logits) - 1].tolist()
            request.logit_rules.apply(logits, columns.history(request.slot_id), drafts)
