"""Device code of `add_rms_norm`: one program per row, everything read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["add_rms_norm"]


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """See `specsched_kernels.add_rms_norm`; all dense."""
    num_rows, width = residual.shape
    if num_rows == 0:
        return
    block = triton.next_power_of_2(width)
    _add_rms_norm_kernel[(num_rows,)](
        residual,
        delta,
        weight,
        out,
        width,
        eps,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
    )


@triton.jit
def _add_rms_norm_kernel(
    residual_ptr, delta_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    mask = column < width
    x = tl.load(residual_ptr + start + column, mask=mask, other=0.0)
    if delta_ptr is not None:
        x += tl.load(delta_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(residual_ptr + start + column, x, mask=mask)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + start + column, out, mask=mask)
