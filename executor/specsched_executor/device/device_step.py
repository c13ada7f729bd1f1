"""The device's part of a step: allocate, pack, run the target, verify, advance; then draft.

Everything that depends on confidences or accepted tokens stays on the device. Shapes come from a
`StepShape` alone, so that one captured graph serves any mix of verify lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation, allocate_verify_lens
from specsched_kernels.pack_rows import PackedRows, RowSources, pack_rows
from specsched_kernels.rule_tables import LogitRuleTables
from specsched_kernels.slot_tables import DraftRanking, SlotTables, read_slots, store_drafts
from specsched_kernels.window_pages import CommittedRows

from specsched_executor.core import (
    PAD_SLOT,
    KvCache,
    ModelBatch,
    ModelConfig,
    TargetModel,
    TargetOutput,
)
from specsched_executor.device.drafter import ContextRows, DeviceDrafter, DraftJob
from specsched_executor.device.judging import DraftJudge
from specsched_executor.device.packed import PackedArrays
from specsched_executor.device.slot_rules import rule_sizes
from specsched_executor.device.step_arrays import (
    DeviceSizes,
    RequestInputs,
    StepInputs,
    input_layout,
    output_layout,
)
from specsched_executor.device.told_logprobs import ToldLogprobs, WantedLogprobs

__all__ = ["DeviceStep", "DraftShape", "StepShape"]


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """padded_rows run for padded_requests; no request sends more than max_query_len.

    has_prompts: whether base rows may be those of a prefill.
    """

    padded_rows: int
    padded_requests: int
    max_query_len: int
    has_prompts: bool

    @property
    def uniform_query_len(self) -> int | None:
        """Rows that every request sends, where the shape alone says so; see ModelBatch."""
        if self.padded_requests == 1:
            return self.padded_rows
        is_row_each = self.max_query_len == 1 and self.padded_rows == self.padded_requests
        return 1 if is_row_each and not self.has_prompts else None


@dataclass(frozen=True, slots=True, order=True)
class DraftShape:
    """num_tokens drafted for padded_requests; draws: see DraftJob."""

    padded_requests: int
    num_tokens: int
    draws: bool


class DeviceStep:
    """Memory and work of the steps of one engine on one device."""

    def __init__(
        self, model: TargetModel, kv_cache: KvCache, drafter: DeviceDrafter, sizes: DeviceSizes
    ) -> None:
        self.sizes = sizes
        self.device = getattr(model, "device", torch.device("cpu"))
        self.inputs = StepInputs(PackedArrays(input_layout(sizes), self.device))
        # Until a step is staged all requests are padding: capturing runs nobody's rows.
        self.inputs.arrays["slot_ids"].fill_(PAD_SLOT)
        self.outputs = PackedArrays(output_layout(sizes), self.device)
        self.tables = SlotTables.empty(sizes.max_requests, sizes.max_draft_tokens, self.device)
        self.rules = LogitRuleTables.empty(
            sizes.max_requests, rule_sizes(sizes, model.config), self.device
        )
        self.drafter = drafter
        self._judge = DraftJudge(self.inputs, self.outputs, self.tables, self.rules, drafter)
        self._model = model
        self._kv_cache = kv_cache

    @property
    def model_config(self) -> ModelConfig:
        """Of the model that the steps run."""
        return self._model.config

    @property
    def max_query_len(self) -> int:
        """Most rows of a decoding request."""
        return 1 if self.drafter.name == "none" else self.sizes.max_draft_tokens + 1

    @torch.inference_mode()
    def verify(self, shape: StepShape, wanted: WantedLogprobs | None = None) -> ToldLogprobs | None:
        """Run the step that the inputs describe, up to the tokens it commits.

        wanted: log-probabilities to return besides; what they take depends on who wants them.
        """
        requests = self.inputs.requests(shape.padded_requests)
        start_positions, num_drafts = read_slots(
            self.tables,
            requests.slot_ids,
            requests.generations,
            requests.given_positions,
            requests.draft_limits,
        )
        allocation = self._allocate(shape, requests, start_positions, num_drafts)
        packed = self._pack(shape, requests, allocation)
        query_start_loc = allocation.query_start_loc
        output = self._run_target(
            shape,
            requests,
            allocation,
            packed,
            start_positions=start_positions,
            more_logit_rows=None if wanted is None else wanted.prompt_rows(query_start_loc),
        )
        raw_logits = None
        if wanted is not None:
            raw_logits = wanted.output_logits(
                output.logits, allocation.logit_start_loc, self.sizes.max_draft_tokens + 1
            )
        num_sampled = allocation.logit_rows.shape[0]
        logits = output.logits[:num_sampled]
        outcome = self._judge.judge(requests, allocation, logits, start_positions)
        self.outputs["verify_lens"][: shape.padded_requests].copy_(allocation.verify_lens)
        self._judge.commit(requests, start_positions, outcome)
        if self.drafter.feature_layers:
            self.drafter.take_in(
                ContextRows(
                    output.features,
                    CommittedRows(
                        row_to_request=allocation.row_to_request,
                        row_positions=allocation.row_positions,
                        query_start_loc=query_start_loc,
                        num_base_rows=requests.num_base_rows,
                        num_accepted=outcome.num_accepted,
                        slot_ids=requests.slot_ids,
                        start_positions=start_positions,
                    ),
                )
            )
        if wanted is None or raw_logits is None:
            return None
        return ToldLogprobs(
            wanted,
            wanted.tell_outputs(raw_logits, outcome.token_ids),
            wanted.tell_prompts(output.logits[num_sampled:]),
        )

    @torch.inference_mode()
    def draft(self, shape: DraftShape) -> None:
        """Draft for the requests of the inputs, into the tables by slot and the outputs."""
        requests, length = self.inputs.requests(shape.padded_requests), shape.num_tokens
        job = DraftJob(requests, self.tables, self.inputs.arrays["step_id"], length, shape.draws)
        token_ids, confidence = self.drafter.draft(job)
        temperature, intercept = self.inputs.arrays["calibration"]
        self.outputs["confidence"][: shape.padded_requests, :length].copy_(confidence)
        store_drafts(
            self.tables,
            requests.slot_ids,
            requests.generations,
            requests.next_draft_lens,
            token_ids,
            confidence,
            DraftRanking(
                temperature,
                intercept,
                requests.temperature,
                self.outputs["ranked"][: shape.padded_requests],
            ),
        )

    def _allocate(
        self,
        shape: StepShape,
        requests: RequestInputs,
        start_positions: torch.Tensor,
        num_drafts: torch.Tensor,
    ) -> VerifyAllocation:
        k = self.sizes.max_draft_tokens
        return allocate_verify_lens(
            self.tables.confidence,
            num_drafts,
            requests.weights,
            self.inputs.arrays["budget"],
            prior=self.inputs.arrays["prior"][:k],
            start_positions=start_positions,
            padded_rows=shape.padded_rows,
            padded_logit_rows=min(shape.padded_rows, shape.padded_requests * (k + 1)),
            slot_ids=requests.slot_ids,
            num_base_rows=requests.num_base_rows,
            samples=requests.samples,
        )

    def _pack(
        self, shape: StepShape, requests: RequestInputs, allocation: VerifyAllocation
    ) -> PackedRows:
        sources = RowSources(
            anchor_token_ids=self.tables.anchor_token_ids,
            draft_token_ids=self.tables.draft_token_ids,
            block_tables=requests.block_tables,
            slot_ids=requests.slot_ids,
            num_base_rows=requests.num_base_rows,
            prompt_token_ids=self.inputs.arrays["prompt_token_ids"] if shape.has_prompts else None,
            prompt_start=requests.prompt_start if shape.has_prompts else None,
        )
        return pack_rows(allocation, sources, self.sizes.block_size)

    def _run_target(
        self,
        shape: StepShape,
        requests: RequestInputs,
        allocation: VerifyAllocation,
        packed: PackedRows,
        *,
        start_positions: torch.Tensor,
        more_logit_rows: torch.Tensor | None,
    ) -> TargetOutput:
        logit_rows = allocation.logit_rows
        if more_logit_rows is not None:
            logit_rows = torch.cat([logit_rows, more_logit_rows.to(logit_rows.dtype)])
        query_start_loc = allocation.query_start_loc
        if self.device.type == "cpu":
            query_start_loc = query_start_loc.long()
        batch = ModelBatch(
            token_ids=packed.token_ids,
            positions=allocation.row_positions,
            slot_mapping=packed.slot_mapping,
            query_start_loc=query_start_loc,
            context_lens=start_positions + allocation.query_start_loc.diff(),
            block_tables=requests.block_tables,
            logit_rows=logit_rows,
            feature_layers=self.drafter.feature_layers,
            max_query_len=shape.max_query_len,
            max_context_tokens=self.sizes.max_context_tokens,
            uniform_query_len=shape.uniform_query_len,
            has_prompts=shape.has_prompts,
        )
        return self._model.forward(batch, self._kv_cache)
