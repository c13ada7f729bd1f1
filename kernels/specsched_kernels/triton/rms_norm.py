"""Device code of `rms_norm`: one program per row, the row read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> None:
    """Fill `out`, see `specsched_kernels.rms_norm`; x and out are dense in the last dimension."""
    width = x.shape[-1]
    rows, out_rows = x.view(-1, width), out.view(-1, width)
    if rows.shape[0] == 0:
        return
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(rows.shape[0],)](
        rows,
        weight,
        out_rows,
        rows.stride(0),
        out_rows.stride(0),
        width,
        eps,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
    )


@triton.jit
def _rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, x_stride, out_stride, width, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_stride + column, out, mask=mask)
