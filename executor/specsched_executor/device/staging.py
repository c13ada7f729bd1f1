"""Fills the inputs of a step from what the host knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specsched_executor.core import PAD_SLOT
from specsched_executor.device.packed import PackedArrays
from specsched_executor.device.step_arrays import DeviceSizes, input_layout
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.engine.inputs import BatchTensors

__all__ = ["BlockTables", "StagedStep", "StagingArea"]


class BlockTables:
    """Block tables by slot on the host, kept up as requests grow."""

    def __init__(self, sizes: DeviceSizes) -> None:
        self._tables = np.zeros((sizes.max_requests, sizes.max_blocks), dtype=np.int32)
        self._known: list[tuple[int, int, int]] = [(0, 0, 0)] * sizes.max_requests

    def gather(self, requests: Sequence[ActiveRequest], out: npt.NDArray[Any]) -> None:
        """Copy the tables of these requests into the first rows of `out`."""
        for request in requests:
            self._update(request)
        slots = [request.slot_id for request in requests]
        np.take(self._tables, slots, axis=0, out=out[: len(slots)], mode="clip")

    def _update(self, request: ActiveRequest) -> None:
        slot, num_blocks = request.slot_id, len(request.block_ids)
        generation, num_cuts, num_known = self._known[slot]
        if (generation, num_cuts) != (request.generation, request.num_block_cuts):
            num_known = 0
        if num_known != num_blocks:
            self._tables[slot, num_known:num_blocks] = request.block_ids[num_known:]
            self._known[slot] = (request.generation, request.num_block_cuts, num_blocks)


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
        self._fields = {name: self.arrays.numpy(name) for name in layout.fields}

    def fill(
        self,
        batch: StepBatch,
        tensors: BatchTensors,
        tables: BlockTables,
        *,
        budget: int,
        draft_limits: Sequence[int],
        next_draft_lens: Sequence[int],
        prior: npt.NDArray[np.float32],
    ) -> StagedStep:
        """Describe `batch`; requests past the last one become padding."""
        entries, fields = batch.entries, self._fields
        num_requests = len(entries)
        fields["budget"][0] = budget
        fields["step_id"][0] = batch.step_id
        fields["prior"][:] = prior
        params = tensors.params
        for name, values in (
            ("slot_ids", tensors.slot_ids),
            ("generations", tensors.generations),
            ("num_base_rows", tensors.num_base_rows),
            ("samples", tensors.samples),
            ("weights", tensors.weights),
            ("temperature", params.temperature),
            ("top_k", params.top_k),
            ("top_p", params.top_p),
            ("draft_temperature", params.draft_temperature),
            ("seeds", params.seeds),
            ("keeps_own_sample", params.keeps_own_sample),
        ):
            fields[name][:num_requests] = values.numpy()
        fields["slot_ids"][num_requests:] = PAD_SLOT
        for name in ("num_base_rows", "samples"):
            fields[name][num_requests:] = 0
        fields["draft_limits"][:num_requests] = draft_limits
        fields["next_draft_lens"][:num_requests] = next_draft_lens
        tables.gather([entry.request for entry in entries], fields["block_tables"])
        num_prompt_tokens = self._fill_prompts(entries)
        return StagedStep(
            num_requests,
            batch.num_other_tokens + budget,
            num_prompt_tokens > 0,
            self._num_bytes(num_requests, num_prompt_tokens),
        )

    def _fill_prompts(self, entries: Sequence[BatchEntry]) -> int:
        """Positions and tokens of the rows that the device does not know by itself."""
        positions, starts = self._fields["given_positions"], self._fields["prompt_start"]
        prompts = self._fields["prompt_token_ids"]
        positions[: len(entries)] = -1
        starts[: len(entries)] = -1
        num_tokens = 0
        for index, entry in enumerate(entries):
            if entry.request.is_anchor_on_device:
                continue
            first, num_rows = entry.first_position, entry.num_base_rows
            positions[index], starts[index] = first, num_tokens
            tokens = entry.request.tokens[first : first + num_rows]
            prompts[num_tokens : num_tokens + num_rows] = tokens
            num_tokens += num_rows
        return num_tokens

    def _num_bytes(self, num_requests: int, num_prompt_tokens: int) -> int:
        layout = self.arrays.layout
        if num_prompt_tokens:
            return layout.end_of("prompt_token_ids", num_prompt_tokens)
        return layout.end_of("block_tables", num_requests)
