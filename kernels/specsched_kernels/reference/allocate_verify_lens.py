"""The allocation rule in torch: what the device code must equal bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specsched_kernels.allocate_verify_lens import VerifyAllocation

__all__ = ["AllocationInputs", "allocate_verify_lens", "survival_scores"]

PAD_SLOT = -1


@dataclass(frozen=True, slots=True)
class AllocationInputs:
    """Arguments of `specsched_kernels.allocate_verify_lens`, checked."""

    confidence: torch.Tensor
    num_draft_tokens: torch.Tensor
    weights: torch.Tensor
    budget: int | torch.Tensor
    prior: torch.Tensor
    start_positions: torch.Tensor
    slot_ids: torch.Tensor | None
    max_verify_len: int | torch.Tensor | None
    num_base_rows: torch.Tensor | None
    samples: torch.Tensor | None


def allocate_verify_lens(inputs: AllocationInputs, out: VerifyAllocation) -> None:
    """Fill `out`, see `specsched_kernels.allocate_verify_lens`."""
    base = _base_rows(inputs)
    samples = base > 0 if inputs.samples is None else inputs.samples & (base > 0)
    row_room = out.row_to_request.shape[0] - int(base.sum())
    logit_room = out.logit_rows.shape[0] - int(samples.sum())
    lengths = _verify_lens(inputs, samples, min(row_room, logit_room))
    out.verify_lens.copy_(lengths)
    _start_loc(out.query_start_loc, base + lengths)
    _start_loc(out.logit_start_loc, torch.where(samples, lengths + 1, 0))
    _fill_rows(inputs.start_positions, base, samples, out)


def survival_scores(inputs: AllocationInputs) -> torch.Tensor:
    """float32 [R, k]: weight * survival, never rising along a row."""
    confidence = inputs.confidence
    if inputs.slot_ids is not None:
        confidence = confidence[inputs.slot_ids.long().clamp(min=0)]
    confidence = torch.where(_is_probability(confidence), confidence, inputs.prior)
    confidence = torch.where(_is_probability(confidence), confidence, 0.0).abs()
    largest = torch.finfo(torch.float32).max
    weights = torch.where(inputs.weights > 0, inputs.weights, 0.0).clamp(max=largest)
    # One product after the other: torch.cumprod accumulates in float64 on a CPU.
    survival = torch.ones_like(weights)
    scores = torch.empty_like(confidence)
    for position in range(confidence.shape[1]):
        survival = survival * confidence[:, position]
        scores[:, position] = weights * survival
    return scores


def _verify_lens(
    inputs: AllocationInputs, samples: torch.Tensor, max_draft_rows: int
) -> torch.Tensor:
    scores = survival_scores(inputs)
    num_requests, num_positions = scores.shape
    present = torch.where(samples, inputs.num_draft_tokens, 0).clamp(0, num_positions)
    if inputs.max_verify_len is not None:
        cap = torch.as_tensor(inputs.max_verify_len, dtype=torch.int32, device=scores.device)
        present = torch.minimum(present, cap.clamp(min=0))
    eligible = torch.arange(num_positions, device=scores.device) < present[:, None]
    budget = max(0, min(int(inputs.budget), max_draft_rows, int(present.sum())))
    # A stable sort of the transpose breaks ties by position, then request.
    ranked = torch.where(eligible, scores, -1.0).T.reshape(-1)
    best = torch.sort(ranked, descending=True, stable=True).indices[:budget]
    lengths = torch.zeros(num_requests, dtype=torch.int32, device=scores.device)
    one = torch.ones((), dtype=torch.int32, device=scores.device)
    return lengths.index_put_((best % max(num_requests, 1),), one, accumulate=True)


def _fill_rows(
    start_positions: torch.Tensor,
    base: torch.Tensor,
    samples: torch.Tensor,
    out: VerifyAllocation,
) -> None:
    query_lens = (base + out.verify_lens).long()
    requests = torch.arange(base.shape[0], device=base.device).repeat_interleave(query_lens)
    num_rows = requests.shape[0]
    rows = torch.arange(num_rows, device=base.device)
    offsets = rows - out.query_start_loc[requests]
    out.row_to_request.fill_(PAD_SLOT)[:num_rows] = requests.to(torch.int32)
    out.row_positions.zero_()[:num_rows] = start_positions[requests] + offsets
    wanted = samples[requests] & (offsets >= base[requests] - 1)
    logit_rows = rows[wanted]
    out.logit_rows.zero_()[: logit_rows.shape[0]] = logit_rows


def _base_rows(inputs: AllocationInputs) -> torch.Tensor:
    if inputs.num_base_rows is None:
        return torch.ones_like(inputs.num_draft_tokens)
    return inputs.num_base_rows.clamp(min=0)


def _start_loc(out: torch.Tensor, lengths: torch.Tensor) -> None:
    out[0] = 0
    torch.cumsum(lengths, 0, dtype=torch.int32, out=out[1:])


def _is_probability(values: torch.Tensor) -> torch.Tensor:
    return (values >= 0) & (values <= 1)
