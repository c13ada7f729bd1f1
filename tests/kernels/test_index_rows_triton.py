"""Device code of the indexer's rows and of latent entries against their references."""

from __future__ import annotations

import pytest
import torch
from specsched_kernels.index_rows import quantize_index_queries, store_index_keys
from specsched_kernels.latent_rows import store_latent

pytestmark = pytest.mark.usefixtures("e4m3_casts")

WIDTH = 128
DTYPES = [torch.float32, torch.bfloat16]


def strided(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of very different sizes, each with something else behind it."""
    rows = torch.randn(*shape[:-1], shape[-1] + 5) * 10.0 ** torch.randint(-6, 3, (*shape[:-1], 1))
    return rows[..., : shape[-1]].to(dtype)


def assert_same_e4m3(got: torch.Tensor, expected: torch.Tensor) -> None:
    """At most a step apart, and that rarely: sums of float32 in another order may round apart."""
    got, expected = got.cpu().float(), expected.float()
    step = (expected.abs() * 2**-3).clamp(min=2**-9)
    assert ((got - expected).abs() <= step).all()
    assert (got != expected).float().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "rotary"), [(1, 64), (19, 16), (33, 128)])
def test_keys(device: str, num_rows: int, rotary: int, dtype: torch.dtype) -> None:
    from specsched_kernels.triton.index_rows import store_index_keys as launch

    keys = torch.cat([strided(num_rows, WIDTH, dtype=dtype), torch.ones(num_rows, 9)], 1).to(dtype)
    keys = keys[:, :WIDTH]
    weight, bias = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH) * 0.1
    positions = torch.randint(0, 40, (num_rows,))
    slots = torch.randperm(192)[:num_rows]
    slots[1::5] = -1
    angles = torch.randn(40, rotary)
    cache = torch.full((3, 64, WIDTH + 4), 7, dtype=torch.uint8)
    out = cache.to(device, copy=True)
    store_index_keys(keys, weight, bias, 1e-6, positions, slots, angles, cache)
    tensors = [tensor.to(device) for tensor in (keys, weight, bias, positions, slots, angles)]
    launch(*tensors[:3], 1e-6, *tensors[3:], out)
    got, expected = (c.cpu().view(3, -1).split([64 * WIDTH, 256], dim=1) for c in (out, cache))
    assert torch.equal(got[1], expected[1])
    e4m3 = [part[0].contiguous().view(torch.float8_e4m3fn) for part in (got, expected)]
    assert_same_e4m3(*e4m3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num_heads"), [(1, 1), (5, 3), (3, 80)])
def test_queries(device: str, num_rows: int, num_heads: int, dtype: torch.dtype) -> None:
    from specsched_kernels.triton.index_rows import quantize_index_queries as launch

    queries = strided(num_rows, num_heads * WIDTH + 7, dtype=dtype)[:, : num_heads * WIDTH]
    queries = queries.unflatten(1, (num_heads, WIDTH))
    weights = strided(num_rows, num_heads, dtype=dtype)
    positions, angles = torch.randint(0, 40, (num_rows,)), torch.randn(40, 64)
    inputs = (queries, weights, positions, angles)
    values, scaled = quantize_index_queries(*inputs, weight_scale=0.25)
    out = torch.zeros(values.shape, device=device).to(torch.float8_e4m3fn)
    out_weights = torch.full(scaled.shape, 77.0, device=device)
    launch(*[t.to(device) for t in inputs], 0.25, out, out_weights)
    assert_same_e4m3(out, values)
    torch.testing.assert_close(out_weights.cpu(), scaled, rtol=1e-6, atol=0)


def test_a_scale_is_the_least_power_of_two(device: str) -> None:
    """Rows whose largest number is 448 times a power of two, or the next float above."""
    from specsched_kernels.triton.index_rows import quantize_index_queries as launch

    peak = torch.tensor([448.0, 224.0, 7.0, 1e-5]).repeat_interleave(2)
    peak[1::2] = torch.nextafter(peak[1::2], torch.tensor(1e9))
    # A column of Hadamard's matrix is rotated into one number, 128^0.5 times as large.
    queries = torch.zeros(1, 8, WIDTH)
    queries[0, :, 0] = peak * 128**0.5
    values = torch.zeros(1, 8, WIDTH, device=device).to(torch.float8_e4m3fn)
    weights = torch.zeros(1, 8, device=device)
    ones = torch.ones(1, 8, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)
    angles = torch.tensor([[1.0, 0.0]], device=device)
    launch(queries.to(device), ones, position, angles, 1.0, values, weights)
    exponents = weights.cpu().log2()
    assert torch.equal(exponents, exponents.round())
    assert (peak <= 448.001 * weights.cpu()).all()
    is_large = peak > 1e-4
    assert (peak > 223.999 * weights.cpu()[0])[is_large].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "rest"), [(24, 8), (512, 64), (33, 0)])
def test_latents(device: str, rank: int, rest: int, dtype: torch.dtype) -> None:
    from specsched_kernels.triton.latent_rows import store_latent as launch

    compressed = strided(6, rank + rest, dtype=dtype)
    weight, slots = torch.rand(rank) + 0.5, torch.tensor([64, -1, 3, 127, 0, -1])
    cache = torch.full((2, 64, rank + rest), 9.0, dtype=dtype)
    out = cache.to(device, copy=True)
    store_latent(compressed, weight, 1e-6, slots, cache)
    launch(compressed.to(device), weight.to(device), 1e-6, slots.to(device), out)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.cpu(), cache, rtol=tolerance, atol=0)
    assert int((out == 9.0).all(-1).sum()) == 128 - 4


def test_rows_must_be_whole() -> None:
    keys = torch.zeros(WIDTH, 4).T
    rest = (torch.zeros(WIDTH), torch.zeros(WIDTH), 1e-6, *torch.zeros(2, 4).long(), torch.zeros(1))
    with pytest.raises(ValueError, match="keys has strides"):
        store_index_keys(keys, *rest, torch.zeros((1, 64, WIDTH + 4), dtype=torch.uint8))
