"""The tensors of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation

from specsched_executor.core import ModelBatch
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.sampling import SamplingTensors

__all__ = ["BatchTensors", "model_batch"]


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """Facts of a batch that are known when it is formed, [R] each.

    slot_ids, generations, first_positions int64; num_draft_tokens, num_base_rows int32; samples
    bool; weights float32. block_tables: int32 [R, max_blocks], garbage past each request's blocks.
    """

    slot_ids: torch.Tensor
    generations: torch.Tensor
    first_positions: torch.Tensor
    num_draft_tokens: torch.Tensor
    num_base_rows: torch.Tensor
    samples: torch.Tensor
    weights: torch.Tensor
    block_tables: torch.Tensor
    params: SamplingTensors

    @classmethod
    def of(
        cls, batch: StepBatch, columns: SlotColumns, weights: npt.NDArray[np.float32]
    ) -> BatchTensors:
        """Gather them. weights: [R], what drafts are ranked by."""
        slots = batch.slot_ids
        return cls(
            slot_ids=torch.from_numpy(slots),
            generations=torch.from_numpy(batch.generations),
            first_positions=torch.from_numpy(batch.first_positions),
            num_draft_tokens=torch.from_numpy(batch.num_draft_tokens.astype(np.int32)),
            num_base_rows=torch.from_numpy(batch.num_base_rows.astype(np.int32)),
            samples=torch.from_numpy(batch.samples),
            weights=torch.from_numpy(weights),
            block_tables=torch.from_numpy(_block_tables(slots, columns)),
            params=SamplingTensors(
                temperature=torch.from_numpy(columns.temperature[slots]),
                top_k=torch.from_numpy(columns.top_k[slots]),
                top_p=torch.from_numpy(columns.top_p[slots]),
                seeds=torch.from_numpy(columns.seed[slots]),
                keeps_own_sample=torch.from_numpy(columns.keeps_own_sample[slots]),
            ),
        )

    @property
    def output_positions(self) -> torch.Tensor:
        """int64 [R]: position of the first token that is sampled."""
        return self.first_positions + self.num_base_rows


def model_batch(
    tensors: BatchTensors,
    columns: SlotColumns,
    allocation: VerifyAllocation,
    draft_token_ids: torch.Tensor,
    *,
    block_size: int,
    feature_layers: tuple[int, ...],
    extra_logit_rows: Sequence[int] = (),
) -> ModelBatch:
    """Lay out the rows: of each request its base rows, then the drafts that are verified.

    The logits of `extra_logit_rows` follow those that are sampled from.
    """
    # numpy: an operation on so little data takes it a tenth of what torch takes to dispatch it.
    starts = allocation.query_start_loc.numpy().astype(np.int64)
    num_rows, num_logits = int(starts[-1]), int(allocation.logit_start_loc[-1])
    requests = allocation.row_to_request.numpy()[:num_rows]
    positions = allocation.row_positions.numpy()[:num_rows]
    block_tables = tensors.block_tables.numpy()
    blocks = block_tables[requests, positions // block_size].astype(np.int64)
    context_lens = tensors.first_positions.numpy() + np.diff(starts)
    token_ids = _token_ids(tensors, columns, requests, positions, draft_token_ids.numpy())
    return ModelBatch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size),
        query_start_loc=torch.from_numpy(starts),
        context_lens=torch.from_numpy(context_lens),
        block_tables=tensors.block_tables,
        logit_rows=_with_extra(allocation.logit_rows[:num_logits], extra_logit_rows),
        feature_layers=feature_layers,
    )


def _block_tables(slots: Slots, columns: SlotColumns) -> npt.NDArray[np.int32]:
    return columns.block_tables[slots, : columns.num_blocks[slots].max()]


def _with_extra(rows: torch.Tensor, extra_rows: Sequence[int]) -> torch.Tensor:
    if not extra_rows:
        return rows
    return torch.cat([rows, torch.tensor(extra_rows, dtype=torch.int64)])


def _token_ids(
    tensors: BatchTensors,
    columns: SlotColumns,
    requests: npt.NDArray[np.integer[Any]],
    positions: npt.NDArray[np.integer[Any]],
    draft_token_ids: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Of each row: a token that is known, past those a draft."""
    draft_index = positions - tensors.output_positions.numpy()[requests]
    is_known = draft_index < 0
    token_ids = np.empty(len(requests), dtype=np.int64)
    slots = tensors.slot_ids.numpy()[requests[is_known]]
    token_ids[is_known] = columns.token_ids[slots, positions[is_known]]
    token_ids[~is_known] = draft_token_ids[requests[~is_known], draft_index[~is_known]]
    return token_ids
