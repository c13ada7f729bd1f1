"""Fused device code of a layer against the unfused float64 references."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.add_rms_norm import add_rms_norm as exact_add_rms_norm
from specsched_kernels.rotate_and_store import HeadNorms
from specsched_kernels.rotate_and_store import rotate_and_store as exact_rotate_and_store
from specsched_kernels.silu_and_mul import silu_and_mul as exact_silu_and_mul

TOLERANCES = [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.cpu().double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 576), (3, 989)])
@pytest.mark.parametrize("adds", [True, False])
def test_add_rms_norm(
    device: str, rows: int, width: int, dtype: torch.dtype, tolerance: float, adds: bool
) -> None:
    from specsched_kernels.triton.add_rms_norm import add_rms_norm

    residual, weight = torch.randn(rows, width), torch.randn(width)
    delta = torch.randn(rows, width).to(dtype) if adds else None
    exact_residual = residual.clone()
    exact = exact_add_rms_norm(exact_residual, delta, weight, 1e-5, out=torch.empty(rows, width))
    moved, out = (
        residual.clone().to(device),
        torch.full((rows, width), 77.0, dtype=dtype, device=device),
    )
    moved_delta = None if delta is None else delta.to(device)
    add_rms_norm(moved, moved_delta, weight.to(device), 1e-5, out)
    assert relative_error(out, exact) < tolerance
    assert relative_error(moved, exact_residual) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 989), (3, 1536)])
def test_silu_and_mul(
    device: str, rows: int, width: int, dtype: torch.dtype, tolerance: float
) -> None:
    from specsched_kernels.triton.silu_and_mul import silu_and_mul

    gate_up = torch.randn(rows, 2 * width).to(dtype)
    exact = exact_silu_and_mul(gate_up.float())
    out = torch.full((rows, width), 77.0, dtype=dtype, device=device)
    silu_and_mul(gate_up.to(device), out)
    assert relative_error(out, exact) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (0, 2)])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rotate_and_store(
    device: str, heads: tuple[int, int], dtype: torch.dtype, tolerance: float, is_normed: bool
) -> None:
    from specsched_kernels.triton.rotate_and_store import rotate_and_store

    num_heads, num_kv_heads = heads
    norms = moved_norms = None
    if is_normed:
        norms = HeadNorms(torch.randn(64), torch.randn(64), 1e-5)
        moved_norms = HeadNorms(norms.query.to(device), norms.key.to(device), norms.eps)
    # Of wider rows, as those are that the context of all layers is projected to at once.
    rows = torch.randn(5, num_heads + 2 * num_kv_heads + 3, 64)[:, :-3].to(dtype)
    angles = torch.randn(40, 32)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions, slots = torch.tensor([0, 39, 7, 7, 12]), torch.tensor([17, -1, 3, 40, 0])
    cache = torch.randn(2, 6, 8, num_kv_heads, 64).to(dtype)
    exact_rows, exact_cache = rows.float().clone(), cache.float().clone()
    exact_rotate_and_store(exact_rows, num_heads, positions, slots, cos_sin, *exact_cache, norms)
    moved = torch.empty(5, num_heads + 2 * num_kv_heads + 3, 64, dtype=dtype, device=device)[:, :-3]
    moved_cache = cache.clone().to(device)
    at = [tensor.to(device) for tensor in (positions, slots, cos_sin)]
    rotate_and_store(moved.copy_(rows), num_heads, *at, *moved_cache, moved_norms)
    assert (
        not num_heads or relative_error(moved[:, :num_heads], exact_rows[:, :num_heads]) < tolerance
    )
    assert relative_error(moved_cache, exact_cache) < tolerance
    written = torch.zeros(48, dtype=torch.bool)
    written[slots[slots >= 0]] = True
    is_kept = (moved_cache.cpu() == cache).flatten(1, 2).flatten(2).all(-1).all(0)
    assert torch.equal(is_kept, ~written)
