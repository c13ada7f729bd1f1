"""Fills the inputs of a step from what the host knows of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.core import PAD_SLOT
from specsched_executor.device.packed import PackedArrays
from specsched_executor.device.step_arrays import DeviceSizes, input_layout
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots

__all__ = ["StagedStep", "StagingArea"]


class StagedStep:
    """How large a staged step is: bounds that the host knows."""

    __slots__ = ("has_prompts", "num_bytes", "num_requests", "num_rows")

    def __init__(self, num_requests: int, num_rows: int, has_prompts: bool, num_bytes: int) -> None:
        self.num_requests = num_requests
        self.num_rows = num_rows
        self.has_prompts = has_prompts
        self.num_bytes = num_bytes


class StagingArea:
    """Host memory that one step's inputs are copied from; pinned where the device allows."""

    def __init__(self, sizes: DeviceSizes, *, is_pinned: bool) -> None:
        layout = input_layout(sizes)
        self.arrays = PackedArrays(layout, torch.device("cpu"), is_pinned=is_pinned)
        self._calibration: ConfidenceCalibration | None = None
        self._requests = (b"", b"")
        self._fields = {name: self.arrays.numpy(name) for name in layout.fields}

    def fill(
        self,
        batch: StepBatch,
        columns: SlotColumns,
        *,
        weights: npt.NDArray[np.float32],
        budget: int,
        draft_limits: Slots,
        next_draft_lens: Slots,
        prior: npt.NDArray[np.float32],
        ruled: Slots,
        calibration: ConfidenceCalibration | None = None,
    ) -> StagedStep:
        """Describe `batch`; requests past the last one become padding.

        weights, draft_limits, next_draft_lens: of each request, [R]. ruled: indexes of those whose
        logits are ruled. calibration: of the confidences of the drafts it makes.
        """
        fields, slots, num_requests = self._fields, batch.slot_ids, len(batch.slot_ids)
        fields["budget"][0] = budget
        fields["step_id"][0] = batch.step_id
        fields["prior"][:] = prior
        self._calibrate(calibration)
        fields["num_ruled"][0] = len(ruled)
        fields["ruled"][: len(ruled)] = ruled
        if self._is_new(batch):
            self._fill_parameters(batch, columns)
        for name, values in (
            ("num_base_rows", batch.num_base_rows),
            ("samples", batch.samples),
            ("draft_limits", draft_limits),
            ("next_draft_lens", next_draft_lens),
            ("weights", weights),
        ):
            fields[name][:num_requests] = values
        tables = fields["block_tables"][:num_requests]
        np.take(columns.block_tables, slots, axis=0, out=tables, mode="clip")
        num_prompt_tokens = self._fill_prompts(batch, columns)
        return StagedStep(
            num_requests,
            batch.num_other_tokens + budget,
            num_prompt_tokens > 0,
            self._num_bytes(num_requests, num_prompt_tokens),
        )

    def _is_new(self, batch: StepBatch) -> bool:
        """Whether the requests are others than those of the step that was staged here before."""
        requests = (batch.slot_ids.tobytes(), batch.generations.tobytes())
        is_new, self._requests = requests != self._requests, requests
        return is_new

    def _fill_parameters(self, batch: StepBatch, columns: SlotColumns) -> None:
        """What of the requests never changes while they hold their slots, and the padding."""
        fields, slots, num_requests = self._fields, batch.slot_ids, len(batch.slot_ids)
        fields["generations"][:num_requests] = batch.generations
        fields["slot_ids"][:num_requests] = slots
        fields["slot_ids"][num_requests:] = PAD_SLOT
        for name in ("num_base_rows", "samples"):
            fields[name][num_requests:] = 0
        for name, column in (
            ("temperature", columns.temperature),
            ("min_p", columns.min_p),
            ("top_k", columns.top_k),
            ("top_p", columns.top_p),
            ("draft_temperature", columns.draft_temperature),
            ("seeds", columns.seed),
            ("keeps_own_sample", columns.keeps_own_sample),
        ):
            np.take(column, slots, out=fields[name][:num_requests], mode="clip")

    def _calibrate(self, calibration: ConfidenceCalibration | None) -> None:
        """Memory keeps it from step to step."""
        if calibration is self._calibration:
            return
        table = self._fields["calibration"]
        table[:] = 0.0  # leaves confidences as they are
        if calibration is not None:
            num_positions = calibration.temperature.shape[1]
            table[0, :, :num_positions] = calibration.temperature.numpy()
            table[1, :, :num_positions] = calibration.intercept.numpy()
        self._calibration = calibration

    def _fill_prompts(self, batch: StepBatch, columns: SlotColumns) -> int:
        """Positions and tokens of the rows that the device does not know by itself."""
        num_requests = len(batch.slot_ids)
        positions, starts = self._fields["given_positions"], self._fields["prompt_start"]
        prompts = self._fields["prompt_token_ids"]
        positions[:num_requests] = -1
        starts[:num_requests] = -1
        num_tokens = 0
        for index in np.flatnonzero(~columns.is_anchor_on_device[batch.slot_ids]).tolist():
            first, num_rows = int(batch.first_positions[index]), int(batch.num_base_rows[index])
            positions[index], starts[index] = first, num_tokens
            tokens = columns.history(batch.slot_ids[index])[first : first + num_rows]
            prompts[num_tokens : num_tokens + num_rows] = tokens
            num_tokens += num_rows
        return num_tokens

    def _num_bytes(self, num_requests: int, num_prompt_tokens: int) -> int:
        layout = self.arrays.layout
        if num_prompt_tokens:
            return layout.end_of("prompt_token_ids", num_prompt_tokens)
        return layout.end_of("block_tables", num_requests)
