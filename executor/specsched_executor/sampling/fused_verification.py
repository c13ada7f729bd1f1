"""Verification in one compiled call, for requests whose distribution nothing is cut from.

torch goes over the vocabulary a dozen times and allocates as often; at a temperature above 0 that
took longer than the matrix products of the target.
"""

from __future__ import annotations

import torch
from specsched_kernels.cpu.threads import num_workers
from specsched_kernels.cpu.verify_drafts import verify_rows

from specsched_executor.sampling.params import SamplingTensors

__all__ = ["can_fuse", "is_uncut", "verify_fused"]


def can_fuse(logits: torch.Tensor) -> bool:
    """Whether the compiled code takes these logits."""
    on_cpu = logits.device.type == "cpu" and logits.dtype == torch.float32
    return on_cpu and logits.is_contiguous()


def is_uncut(params: SamplingTensors) -> torch.Tensor:
    """bool [R]: the request is greedy, or samples with neither top-k nor top-p."""
    return (params.temperature <= 0) | ((params.top_k <= 0) & (params.top_p >= 1))


def verify_fused(
    *,
    logits: torch.Tensor,
    logit_start_loc: torch.Tensor,
    verify_lens: torch.Tensor,
    output_positions: torch.Tensor,
    draft_token_ids: torch.Tensor,
    params: SamplingTensors,
    distribution: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """token_ids, num_accepted and faulty of a `Verification`, from the fields of its inputs.

    Cuts are not looked at: what it says of a request that is not `is_uncut` is of no use.
    """
    num_requests, num_positions = draft_token_ids.shape
    token_ids = torch.empty((num_requests, num_positions + 1), dtype=torch.int64)
    num_accepted = torch.empty(num_requests, dtype=torch.int64)
    faulty = torch.empty(num_requests, dtype=torch.bool)
    verify_rows(
        logits.numpy(),
        logit_start_loc.numpy(),
        verify_lens.numpy(),
        output_positions.numpy(),
        draft_token_ids.numpy(),
        params.temperature.numpy(),
        params.seeds.numpy(),
        params.keeps_own_sample.numpy(),
        None if distribution is None else distribution.numpy(),
        token_ids.numpy(),
        num_accepted.numpy(),
        faulty.numpy(),
        num_workers(logits.numel()),
    )
    return token_ids, num_accepted, faulty
