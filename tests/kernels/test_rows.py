"""Row-wise kernels on the CPU: norm, rotary embedding, gated activation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_kernels.cpu import rows
from specsched_kernels.reference import rms_norm as exact_norm
from specsched_kernels.reference import rope as exact_rope
from specsched_kernels.rms_norm import rms_norm
from specsched_kernels.rope import rope


@pytest.mark.parametrize("shape", [(1, 1), (3, 99), (5, 576), (2, 4, 64)])
def test_rms_norm(shape):
    x, weight = torch.randn(shape) * 5, torch.randn(shape[-1])
    exact = exact_norm.rms_norm(x.double(), weight.double(), 1e-5, out=torch.empty_like(x).double())
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), exact, rtol=1e-5, atol=1e-6)
    assert rms_norm(x, weight, 1e-5, out=x) is x
    torch.testing.assert_close(x.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head_dim", [2, 10, 64, 98])
def test_rope_on_views_of_one_projection(head_dim):
    fused = torch.randn(7, 5, head_dim)
    positions = torch.tensor([0, 1, 5, 988, 3, 3, 40])
    angles = torch.rand(989, head_dim // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    exact = fused.double()
    exact_rope.rope(exact[:, :3], exact[:, 3:4], positions, cos_sin.double())
    rope(fused[:, :3], fused[:, 3:4], positions, cos_sin)
    torch.testing.assert_close(fused.double(), exact, rtol=1e-5, atol=1e-6)


def test_rope_is_a_rotation_by_the_position():
    """A pair (1, 0) at position p turns to (cos p, sin p) when the frequency is 1."""
    table = torch.arange(4.0)[:, None]
    cos_sin = torch.cat((table.cos(), table.sin()), dim=-1)
    query, key = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    rope(query, key, torch.tensor([3]), cos_sin)
    torch.testing.assert_close(query[0, 0], torch.tensor([np.cos(3.0), np.sin(3.0)]).float())
    torch.testing.assert_close(key[0, 0], torch.tensor([-np.sin(3.0), np.cos(3.0)]).float())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_rows", [1, 3, 99])
def test_silu_and_mul(num_rows, workers):
    gate_up = torch.randn(num_rows, 2 * 48) * 20
    gate_up[0, :4] = torch.tensor([0.0, 200.0, -200.0, 1e-20])
    out = torch.empty(num_rows, 48)
    rows.silu_and_mul(gate_up.numpy(), out.numpy(), workers)
    gate, up = gate_up.double().chunk(2, dim=-1)
    torch.testing.assert_close(out.double(), gate.sigmoid() * gate * up, rtol=1e-5, atol=1e-30)


def test_silu_of_nan_is_nan():
    gate_up = torch.ones(1, 2 * 16)
    gate_up[0, 3] = float("nan")
    out = torch.empty(1, 16)
    rows.silu_and_mul(gate_up.numpy(), out.numpy(), 1)
    assert out.isnan().nonzero().tolist() == [[0, 3]]
