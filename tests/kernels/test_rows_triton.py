"""Device code of the norm and the rotary embedding against their float64 references."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.reference.rms_norm import rms_norm as exact_rms_norm
from specsched_kernels.reference.rope import rope as exact_rope

TOLERANCES = [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 576), (3, 989)])
def test_rms_norm(device: str, rows: int, width: int, dtype: torch.dtype, tolerance: float) -> None:
    from specsched_kernels.triton.rms_norm import rms_norm

    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)
    out = torch.full_like(x, 77.0).to(device)
    rms_norm(x.to(device), weight.to(device), 1e-5, out=out)
    exact = exact_rms_norm(x.double(), weight.double(), 1e-5, out=torch.empty(rows, width).double())
    assert relative_error(out, exact) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("heads", [(9, 3), (4, 4)])
def test_rope_leaves_the_values_beside_it_alone(
    device: str, heads: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    from specsched_kernels.triton.rope import rope

    num_heads, num_kv_heads = heads
    width = num_heads + 2 * num_kv_heads
    rows = torch.randn(5, width, 64).to(dtype)
    angles = torch.randn(40, 32)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([0, 39, 7, 7, 12])
    moved, exact = rows.clone().to(device), rows.double()
    for run, qkv, place in ((rope, moved, device), (exact_rope, exact, "cpu")):
        query, key, _ = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        run(query, key, positions.to(place), cos_sin.to(place))
    assert relative_error(moved, exact) < tolerance
    assert torch.equal(moved[:, -num_kv_heads:].cpu(), rows[:, -num_kv_heads:])
