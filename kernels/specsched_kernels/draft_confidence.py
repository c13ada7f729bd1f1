"""How likely each drafted token is to be accepted, said without looking at it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import draft_confidence as reference

__all__ = ["ConfidenceHead", "draft_confidence"]


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """sigmoid(hidden_weight . hidden + code_weight . code + bias); float32 [H], [r] and [1]."""

    hidden_weight: torch.Tensor
    code_weight: torch.Tensor
    bias: torch.Tensor


def draft_confidence(
    hidden: torch.Tensor,
    anchor_ids: torch.Tensor,
    token_ids: torch.Tensor,
    codes: torch.Tensor,
    head: ConfidenceHead,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 [R, n]: confidence j from hidden state j and the code of token j - 1.

    The anchor comes before token 0 (arXiv 2607.05147, section 3.2).

    hidden: [R, n, H], dense in its last two dimensions. anchor_ids: int64 [R]. token_ids: int64
    [R, n]. codes: [V, r]. Raises ValueError for a tensor of another shape or dtype.
    """
    device, (num_requests, num_tokens, hidden_size) = hidden.device, hidden.shape
    shape, rank, float32 = (num_requests, num_tokens), codes.shape[1], torch.float32
    if out is None:
        out = torch.empty(shape, device=device)
    check_tensor("out", out, shape, float32, device)
    check_tensor("anchor_ids", anchor_ids, shape[:1], torch.int64, device)
    check_tensor("token_ids", token_ids, shape, torch.int64, device)
    check_tensor("codes", codes, (codes.shape[0], rank), codes.dtype, device)
    check_tensor("head.hidden_weight", head.hidden_weight, (hidden_size,), float32, device)
    check_tensor("head.code_weight", head.code_weight, (rank,), float32, device)
    check_tensor("head.bias", head.bias, (1,), float32, device)
    if hidden.stride()[1:] != (hidden_size, 1):
        raise ValueError(f"hidden has strides {hidden.stride()}; accepted: (any, {hidden_size}, 1)")
    if device.type == "cpu":
        reference.draft_confidence(hidden, anchor_ids, token_ids, codes, head, out)
    else:
        from specsched_kernels.triton.draft_confidence import draft_confidence as launch

        launch(hidden, anchor_ids, token_ids, codes, head, out)
    return out
