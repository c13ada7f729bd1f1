"""The device part of a step: allocate, run the target, judge the drafts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation, allocate_verify_lens

from specsched_executor.core import KvCache, TargetModel, TargetOutput
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.drafts import DraftTable
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.inputs import BatchTensors, model_batch
from specsched_executor.sampling import (
    Verification,
    VerificationInputs,
    suppress_early_stops,
    verify_drafts,
)

__all__ = ["PassOutcome", "TargetPass"]


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What the target made of a batch of R requests.

    verify_lens int64 [R]; query_start_loc int64 [R+1]; verify_ms: forward and sampling.
    """

    verify_lens: torch.Tensor
    query_start_loc: torch.Tensor
    verification: Verification
    output: TargetOutput
    verify_ms: float

    @property
    def num_rows(self) -> int:
        """Rows the target ran."""
        return int(self.query_start_loc[-1])


class TargetPass:
    """Runs batches through the target."""

    def __init__(
        self,
        model: TargetModel,
        kv_cache: KvCache,
        drafts: DraftTable,
        feature_layers: tuple[int, ...],
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._drafts = drafts
        self._feature_layers = feature_layers

    def run(self, batch: StepBatch, tensors: BatchTensors, allowance: Allowance) -> PassOutcome:
        """Verify at most what `allowance` says, ranked by live confidences."""
        started = time.perf_counter()
        allocation = self._allocate(batch, tensors, allowance)
        draft_token_ids = self._drafts.token_ids(tensors.slot_ids)
        output = self._model.forward(
            model_batch(
                batch,
                tensors,
                allocation,
                draft_token_ids,
                block_size=self._kv_cache.block_size,
                feature_layers=self._feature_layers,
            ),
            self._kv_cache,
        )
        inputs = VerificationInputs(
            logits=output.logits,
            logit_start_loc=allocation.logit_start_loc.long(),
            verify_lens=allocation.verify_lens.long(),
            output_positions=tensors.output_positions,
            draft_token_ids=draft_token_ids,
            params=tensors.params,
            draft_distribution=self._drafts.distribution(tensors.slot_ids),
        )
        self._suppress_early_stops(batch, inputs)
        return PassOutcome(
            verify_lens=inputs.verify_lens,
            query_start_loc=allocation.query_start_loc.long(),
            verification=verify_drafts(inputs),
            output=output,
            verify_ms=(time.perf_counter() - started) * 1e3,
        )

    def _allocate(
        self, batch: StepBatch, tensors: BatchTensors, allowance: Allowance
    ) -> VerifyAllocation:
        budget = min(allowance.budget, batch.num_draft_tokens, batch.max_draft_rows)
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

    def _suppress_early_stops(self, batch: StepBatch, inputs: VerificationInputs) -> None:
        for entry, first_row, last_row in zip(
            batch.entries,
            inputs.logit_start_loc[:-1].tolist(),
            inputs.logit_start_loc[1:].tolist(),
            strict=True,
        ):
            request = entry.request
            num_early = request.stop_rules.ignored_below - request.num_output_tokens
            if num_early > 0 and last_row > first_row:
                rows = inputs.logits[first_row : min(last_row, first_row + num_early)]
                suppress_early_stops(rows, request.stop_rules.token_ids)
