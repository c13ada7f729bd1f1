"""Which tokens of its context a query row attends: those of the largest logits."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import select_topk as reference

__all__ = ["select_topk"]


def select_topk(
    logits: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    k: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Positions of the k largest of logits[i, :context_lens[i]], in ascending order, then -1.

    logits: float32 [n, T], dense in the last dimension; entries at or past a row's context length
    are not looked at. context_lens: int32 [n], at most T. Of equal logits the lower position is
    taken first; NaN counts as -inf, and -0 as 0. A row of at most k tokens gets all of them.
    Returns `out`, int32 [n, k]. Raises ValueError for another shape or dtype.
    """
    num_rows, num_columns = logits.shape
    device = logits.device
    if k < 1:
        raise ValueError(f"k is {k}; accepted: 1 or more")
    if logits.dtype != torch.float32 or (num_columns > 1 and logits.stride(1) != 1):
        raise ValueError(
            f"logits are {logits.dtype} with strides {logits.stride()}; "
            "accepted: torch.float32, dense in the last dimension"
        )
    if out is None:
        out = torch.empty((num_rows, k), dtype=torch.int32, device=device)
    check_tensor("context_lens", context_lens, (num_rows,), torch.int32, device)
    check_tensor("out", out, (num_rows, k), torch.int32, device)
    if logits.is_cuda:
        from specsched_kernels.triton.select_topk import select_topk as launch

        launch(logits, context_lens, out)
    else:
        reference.select_topk(logits, context_lens, out)
    return out
