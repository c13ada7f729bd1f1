"""Device code of `draft_confidence`: a program per draft token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from specsched_kernels.draft_confidence import ConfidenceHead

__all__ = ["draft_confidence"]


def draft_confidence(
    hidden: torch.Tensor,
    anchor_ids: torch.Tensor,
    token_ids: torch.Tensor,
    codes: torch.Tensor,
    head: ConfidenceHead,
    out: torch.Tensor,
) -> None:
    """Fill `out`, see `specsched_kernels.draft_confidence`."""
    num_requests, num_tokens, hidden_size = hidden.shape
    if num_requests == 0:
        return
    rank = codes.shape[1]
    _confidence_kernel[(num_requests, num_tokens)](
        hidden,
        anchor_ids,
        token_ids,
        codes,
        head.hidden_weight,
        head.code_weight,
        head.bias,
        out,
        hidden.stride(0),
        hidden_size,
        rank,
        BLOCK_HIDDEN=triton.next_power_of_2(hidden_size),
        BLOCK_RANK=triton.next_power_of_2(rank),
        num_warps=4,
    )


@triton.jit
def _confidence_kernel(
    hidden_ptr,
    anchor_ptr,
    token_ptr,
    code_ptr,
    hidden_weight_ptr,
    code_weight_ptr,
    bias_ptr,
    out_ptr,
    hidden_stride,
    hidden_size,
    rank,
    BLOCK_HIDDEN: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):
    request = tl.program_id(0)
    position = tl.program_id(1)
    at = request * tl.num_programs(1) + position
    is_first = position == 0
    previous = tl.load(tl.where(is_first, anchor_ptr + request, token_ptr + at - 1))
    unit = tl.arange(0, BLOCK_HIDDEN)
    row_ptr = hidden_ptr + request.to(tl.int64) * hidden_stride + position * hidden_size
    hidden = tl.load(row_ptr + unit, mask=unit < hidden_size, other=0.0).to(tl.float32)
    weight = tl.load(hidden_weight_ptr + unit, mask=unit < hidden_size, other=0.0)
    dim = tl.arange(0, BLOCK_RANK)
    code = tl.load(code_ptr + previous * rank + dim, mask=dim < rank, other=0.0).to(tl.float32)
    code_weight = tl.load(code_weight_ptr + dim, mask=dim < rank, other=0.0)
    score = tl.sum(hidden * weight, axis=0) + tl.sum(code * code_weight, axis=0)
    tl.store(out_ptr + at, tl.sigmoid(score + tl.load(bias_ptr)))
