"""The tensors of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation
from specsched_protocol.fairness import RecentTokens, fair_weights

from specsched_executor.core import ModelBatch
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import BatchEntry, StepBatch
from specsched_executor.sampling import SamplingTensors, alters_logits

__all__ = ["BatchTensors", "model_batch"]


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """Facts of a batch that are known when it is formed, [R] each.

    slot_ids, generations, first_positions int64; num_draft_tokens, num_base_rows int32; samples
    bool; weights float32; teaches bool, False where what is accepted does not follow
    from the target's and the drafter's own distributions.
    """

    slot_ids: torch.Tensor
    generations: torch.Tensor
    first_positions: torch.Tensor
    num_draft_tokens: torch.Tensor
    num_base_rows: torch.Tensor
    samples: torch.Tensor
    weights: torch.Tensor
    teaches: torch.Tensor
    params: SamplingTensors

    @classmethod
    def of(cls, batch: StepBatch) -> BatchTensors:
        """Gather them from the entries."""
        entries = batch.entries
        requests = [entry.request for entry in entries]
        int32, int64 = torch.int32, torch.int64
        return cls(
            slot_ids=torch.tensor([r.slot_id for r in requests], dtype=int64),
            generations=torch.tensor([r.generation for r in requests], dtype=int64),
            first_positions=torch.tensor([e.first_position for e in entries], dtype=int64),
            num_draft_tokens=torch.tensor([e.num_draft_tokens for e in entries], dtype=int32),
            num_base_rows=torch.tensor([e.num_base_rows for e in entries], dtype=int32),
            samples=torch.tensor([e.samples for e in entries], dtype=torch.bool),
            weights=torch.tensor([r.request.weight for r in requests], dtype=torch.float32),
            teaches=torch.tensor([_teaches(r) for r in requests], dtype=torch.bool),
            params=SamplingTensors.of(
                [r.request.sampling for r in requests], [r.seed for r in requests]
            ),
        )

    def with_fair_weights(self, recent: RecentTokens, alpha: float) -> BatchTensors:
        """The same with the weights that the plan rests on; see specsched_protocol.fairness."""
        if alpha == 0.0:
            return self
        paces = recent.of(self.slot_ids.numpy(), self.generations.numpy())
        fair = fair_weights(self.weights.numpy(), paces, alpha).astype(np.float32)
        return replace(self, weights=torch.from_numpy(fair))

    @property
    def output_positions(self) -> torch.Tensor:
        """int64 [R]: position of the first token that is sampled."""
        return self.first_positions + self.num_base_rows


def _teaches(request: ActiveRequest) -> bool:
    """Whether drafts of the step to come are judged by the target's own distribution."""
    is_stop_held_off = request.num_output_tokens < request.stop_rules.ignored_below
    sampling = request.request.sampling
    return not (is_stop_held_off or sampling.keeps_own_sample or alters_logits(sampling))


def model_batch(
    batch: StepBatch,
    tensors: BatchTensors,
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
    block_tables = _block_tables(batch.entries)
    blocks = block_tables[requests, positions // block_size].astype(np.int64)
    context_lens = tensors.first_positions.numpy() + np.diff(starts)
    return ModelBatch(
        token_ids=_token_ids(batch.entries, allocation.verify_lens, draft_token_ids),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size),
        query_start_loc=torch.from_numpy(starts),
        context_lens=torch.from_numpy(context_lens),
        block_tables=torch.from_numpy(block_tables),
        logit_rows=_with_extra(allocation.logit_rows[:num_logits], extra_logit_rows),
        feature_layers=feature_layers,
    )


def _with_extra(rows: torch.Tensor, extra_rows: Sequence[int]) -> torch.Tensor:
    if not extra_rows:
        return rows
    return torch.cat([rows, torch.tensor(extra_rows, dtype=torch.int64)])


def _token_ids(
    entries: Sequence[BatchEntry], verify_lens: torch.Tensor, draft_token_ids: torch.Tensor
) -> torch.Tensor:
    token_ids: list[int] = []
    drafts = draft_token_ids.tolist()
    for entry, verify_len, draft in zip(entries, verify_lens.tolist(), drafts, strict=True):
        first = entry.first_position
        token_ids += entry.request.tokens[first : first + entry.num_base_rows]
        token_ids += draft[:verify_len]
    return torch.tensor(token_ids, dtype=torch.int64)


def _block_tables(entries: Sequence[BatchEntry]) -> npt.NDArray[np.int32]:
    """int32 [R, max_blocks], padded with block 0, which no position of the request reaches."""
    longest = max(len(entry.request.block_ids) for entry in entries)
    tables = np.zeros((len(entries), longest), dtype=np.int32)
    for row, entry in zip(tables, entries, strict=True):
        row[: len(entry.request.block_ids)] = entry.request.block_ids
    return tables
