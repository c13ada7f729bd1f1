"""Hand the step's budget of draft tokens to its requests, and lay out the rows that follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import allocate_verify_lens as reference

__all__ = ["MAX_DRAFT_TOKENS", "MAX_REQUESTS", "VerifyAllocation", "allocate_verify_lens"]

MAX_REQUESTS = 1024
"""Requests the device kernel takes in one launch."""
MAX_DRAFT_TOKENS = 16
"""Draft positions the device kernel takes."""


@dataclass(frozen=True, slots=True)
class VerifyAllocation:
    """Which rows the target runs, for R requests of up to k drafts.

    verify_lens:     int32 [R], draft tokens verified, the anchor excluded.
    query_start_loc: int32 [R+1], exclusive prefix sum of num_base_rows + verify_lens.
    row_to_request:  int32 [padded_rows], PAD_SLOT (-1) in rows past query_start_loc[R].
    row_positions:   int64 [padded_rows], position of the row in its sequence; 0 in padded rows.
    logit_start_loc: int32 [R+1], exclusive prefix sum of the logit rows of each request: its last
                     base row and its drafts, verify_len + 1 of them, none for a request that does
                     not sample.
    logit_rows:      int64 [padded_logit_rows], row of each logit; 0 past logit_start_loc[R].
    """

    verify_lens: torch.Tensor
    query_start_loc: torch.Tensor
    row_to_request: torch.Tensor
    row_positions: torch.Tensor
    logit_start_loc: torch.Tensor
    logit_rows: torch.Tensor

    @classmethod
    def empty(
        cls,
        num_requests: int,
        padded_rows: int,
        padded_logit_rows: int | None = None,
        device: torch.device | str = "cpu",
    ) -> VerifyAllocation:
        """Uninitialised outputs, for `out=`; `padded_logit_rows` defaults to `padded_rows`."""
        num_logits = padded_rows if padded_logit_rows is None else padded_logit_rows

        def int32(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.int32, device=device)

        def int64(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.int64, device=device)

        return cls(
            verify_lens=int32(num_requests),
            query_start_loc=int32(num_requests + 1),
            row_to_request=int32(padded_rows),
            row_positions=int64(padded_rows),
            logit_start_loc=int32(num_requests + 1),
            logit_rows=int64(num_logits),
        )


def allocate_verify_lens(
    confidence: torch.Tensor,
    num_draft_tokens: torch.Tensor,
    weights: torch.Tensor,
    budget: int | torch.Tensor,
    *,
    prior: torch.Tensor,
    start_positions: torch.Tensor,
    padded_rows: int,
    slot_ids: torch.Tensor | None = None,
    max_verify_len: int | torch.Tensor | None = None,
    num_base_rows: torch.Tensor | None = None,
    samples: torch.Tensor | None = None,
    padded_logit_rows: int | None = None,
    out: VerifyAllocation | None = None,
) -> VerifyAllocation:
    """Verify the `budget` drafts of the largest weight * survival; ties by position, then request.

    survival[r, j] = product of confidence[r, 0..j], multiplied in that order in float32. Neither it
    nor its rounded product with a weight ever rises along j, so each share is a prefix of its draft
    and a later token never lifts an earlier one. Drafts of zero survival rank last but do count.
    Whatever the budget, no more drafts are taken than there is room for in `padded_rows` beside the
    base rows and in `padded_logit_rows` beside one logit per request that samples.

    confidence: float32 [R, k], or [num_slots, k] gathered by `slot_ids`. A value that is not a
    number in [0, 1] counts as prior[j].
    num_draft_tokens: int32 [R], drafts present; values past k count as k.
    weights: float32 [R], above 0.
    budget: int >= 0 or int32 tensor of one element, read on the device (graph capture).
    prior: float32 [k], in [0, 1].
    start_positions: int64 [R], position of the first row of each request.
    slot_ids: int32 or int64 [R]; -1 for a padded request (which has no drafts and no base rows).
    max_verify_len: cap for all, or int32 [R].
    num_base_rows: int32 [R], rows that are not drafts: 1 (the default) for a decoding request, the
    chunk length inside a prefill, 0 for a padded request. Their sum must not exceed `padded_rows`.
    padded_logit_rows: by default that of `out`, else `padded_rows`.
    samples: bool [R], False inside a chunked prefill, where drafts do not count; by default all
    with base rows.
    out: outputs to fill (`VerifyAllocation.empty`); required for graph capture.

    On CUDA one launch, nothing read back, R <= MAX_REQUESTS and k <= MAX_DRAFT_TOKENS.
    Raises ValueError for a tensor of another shape or dtype, or a negative budget.
    """
    num_requests = num_draft_tokens.shape[0]
    num_positions = confidence.shape[-1]
    device = confidence.device
    num_rows = confidence.shape[0] if slot_ids is not None else num_requests
    check_tensor("confidence", confidence, (num_rows, num_positions), torch.float32, device)
    check_tensor("num_draft_tokens", num_draft_tokens, (num_requests,), torch.int32, device)
    check_tensor("weights", weights, (num_requests,), torch.float32, device)
    check_tensor("prior", prior, (num_positions,), torch.float32, device)
    check_tensor("start_positions", start_positions, (num_requests,), torch.int64, device)
    inputs = reference.AllocationInputs(
        confidence=confidence,
        num_draft_tokens=num_draft_tokens,
        weights=weights,
        budget=budget,
        prior=prior,
        start_positions=start_positions,
        slot_ids=slot_ids,
        max_verify_len=max_verify_len,
        num_base_rows=num_base_rows,
        samples=samples,
    )
    _check_optional(inputs, device)
    _check_budget(budget, padded_rows, device)
    if out is None:
        out = VerifyAllocation.empty(num_requests, padded_rows, padded_logit_rows, device)
    _check_out(out, num_requests, padded_rows, padded_logit_rows, device)
    if device.type == "cpu":
        _allocate_on_cpu(inputs, out)
    else:
        _launch(inputs, out)
    return out


def _allocate_on_cpu(inputs: reference.AllocationInputs, out: VerifyAllocation) -> None:
    from specsched_kernels.cpu.allocate_verify_lens import allocate

    confidence, ones = inputs.confidence, torch.ones_like(inputs.num_draft_tokens)
    if inputs.slot_ids is not None:
        confidence = confidence[inputs.slot_ids.long().clamp(min=0)]
    base = ones if inputs.num_base_rows is None else inputs.num_base_rows
    samples = base > 0 if inputs.samples is None else inputs.samples
    cap = MAX_DRAFT_TOKENS if inputs.max_verify_len is None else inputs.max_verify_len
    allocate(
        confidence.contiguous().numpy(),
        inputs.num_draft_tokens.numpy(),
        inputs.weights.numpy(),
        int(inputs.budget),
        inputs.prior.numpy(),
        inputs.start_positions.numpy(),
        cap.numpy() if isinstance(cap, torch.Tensor) else np.array([cap], dtype=np.int64),
        base.numpy(),
        samples.numpy(),
        out.verify_lens.numpy(),
        out.query_start_loc.numpy(),
        out.row_to_request.numpy(),
        out.row_positions.numpy(),
        out.logit_start_loc.numpy(),
        out.logit_rows.numpy(),
    )


def _launch(inputs: reference.AllocationInputs, out: VerifyAllocation) -> None:
    from specsched_kernels.triton.allocate_verify_lens import allocate_verify_lens as launch

    _check_limits(inputs)
    launch(inputs, out)


def _check_limits(inputs: reference.AllocationInputs) -> None:
    num_requests, num_positions = inputs.num_draft_tokens.shape[0], inputs.confidence.shape[1]
    if num_requests > MAX_REQUESTS:
        raise ValueError(f"{num_requests} requests; accepted on a device: at most {MAX_REQUESTS}")
    if not 1 <= num_positions <= MAX_DRAFT_TOKENS:
        raise ValueError(
            f"confidence has {num_positions} positions; "
            f"accepted on a device: 1 to {MAX_DRAFT_TOKENS}"
        )


def _check_optional(inputs: reference.AllocationInputs, device: torch.device) -> None:
    shape, cap = inputs.num_draft_tokens.shape, inputs.max_verify_len
    if inputs.slot_ids is not None:
        check_tensor("slot_ids", inputs.slot_ids, shape, (torch.int32, torch.int64), device)
    if isinstance(cap, torch.Tensor):
        check_tensor("max_verify_len", cap, shape, torch.int32, device)
    elif cap is not None and cap < 0:
        raise ValueError(f"max_verify_len is {cap}; accepted: 0 or more")
    if inputs.num_base_rows is not None:
        check_tensor("num_base_rows", inputs.num_base_rows, shape, torch.int32, device)
    if inputs.samples is not None:
        check_tensor("samples", inputs.samples, shape, torch.bool, device)


def _check_budget(budget: int | torch.Tensor, padded_rows: int, device: torch.device) -> None:
    if padded_rows < 0:
        raise ValueError(f"padded_rows is {padded_rows}; accepted: 0 or more")
    if isinstance(budget, torch.Tensor):
        if budget.numel() != 1:
            raise ValueError(f"budget has {budget.numel()} elements; accepted: one")
        check_tensor("budget", budget, tuple(budget.shape), torch.int32, device)
    elif budget < 0:
        raise ValueError(f"budget is {budget}; accepted: 0 or more")


def _check_out(
    out: VerifyAllocation,
    num_requests: int,
    padded_rows: int,
    padded_logit_rows: int | None,
    device: torch.device,
) -> None:
    num_logits = out.logit_rows.shape[0] if padded_logit_rows is None else padded_logit_rows
    locs, int32, int64 = (num_requests + 1,), torch.int32, torch.int64
    check_tensor("out.verify_lens", out.verify_lens, (num_requests,), int32, device)
    check_tensor("out.query_start_loc", out.query_start_loc, locs, int32, device)
    check_tensor("out.row_to_request", out.row_to_request, (padded_rows,), int32, device)
    check_tensor("out.row_positions", out.row_positions, (padded_rows,), int64, device)
    check_tensor("out.logit_start_loc", out.logit_start_loc, locs, int32, device)
    check_tensor("out.logit_rows", out.logit_rows, (num_logits,), int64, device)
