"""What the lightning indexer stores and asks with, against a float64 reading of its definition."""

from __future__ import annotations

import math

import pytest
import torch
from specsched_kernels.index_rows import quantize_index_queries, store_index_keys
from specsched_kernels.latent_rows import store_latent
from specsched_kernels.reference.indexer_logits import cached_keys

WIDTH, ROTARY, EPS = 128, 16, 1e-6


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix, orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(size)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """float64 [128] after rope of its first dimensions, then Hadamard's matrix."""
    cos, sin = angles.double().chunk(2)
    half = ROTARY // 2
    first, second, rest = x[:half], x[half:ROTARY], x[ROTARY:]
    x = torch.cat((first * cos - second * sin, second * cos + first * sin, rest))
    return hadamard(WIDTH) @ x


@pytest.fixture
def angles() -> torch.Tensor:
    return torch.randn(40, ROTARY)


def expected_scale(values: torch.Tensor) -> float:
    return 2.0 ** math.ceil(math.log2(max(float(values.abs().max()), 1e-4) / 448))


def test_keys_are_normed_rotated_and_stored_with_their_scale(angles):
    keys = torch.randn(6, WIDTH) * torch.tensor([1e-9, 0.1, 1, 10, 1e3, 1e6])[:, None]
    weight, bias = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH) * 0.1
    positions, slots = torch.tensor([0, 5, 39, 7, 1, 2]), torch.tensor([0, 63, 64, -1, 130, 5])
    cache = torch.full((3, 64, WIDTH + 4), 7, dtype=torch.uint8)
    store_index_keys(keys, weight, bias, EPS, positions, slots, angles, cache)
    stored = cached_keys(cache, torch.arange(3))
    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        if slot < 0:
            continue
        x = keys[row].double()
        x = (x - x.mean()) / (x.var(correction=0) + EPS).sqrt() * weight + bias
        expected = rotated(x, angles[position])
        scale = expected_scale(expected)
        # e4m3 has three bits after the first, and steps of 2^-9 below its normal numbers.
        bound = (expected.abs() * 2**-4).clamp(min=scale * 2**-10) * 1.01
        assert ((stored[slot] - expected).abs() <= bound).all()
    untouched = torch.ones(192, dtype=torch.bool)
    untouched[slots[slots >= 0]] = False
    values = cache.view(3, -1)[:, : 64 * WIDTH].reshape(-1, WIDTH)
    assert (values[untouched] == 7).all()


def test_queries_keep_their_scale_in_the_weight_of_the_head(angles):
    queries = torch.randn(3, 4, WIDTH) * torch.tensor([0.01, 1, 50, 1e4])[None, :, None]
    weights, positions = torch.randn(3, 4), torch.tensor([3, 0, 12])
    values, scaled = quantize_index_queries(queries, weights, positions, angles, weight_scale=0.25)
    assert values.dtype == torch.float8_e4m3fn
    for row in range(3):
        for head in range(4):
            expected = rotated(queries[row, head].double(), angles[positions[row]])
            scale = expected_scale(expected)
            assert float(scaled[row, head]) == pytest.approx(
                float(weights[row, head]) * 0.25 * scale
            )
            error = (values[row, head].double() * scale - expected).abs()
            assert (error <= (expected.abs() * 2**-4).clamp(min=scale * 2**-10) * 1.01).all()


def test_a_row_has_the_same_bits_among_any_others(angles):
    queries, positions = torch.randn(9, 4, WIDTH), torch.arange(9)
    weights = torch.randn(9, 4)
    together = quantize_index_queries(queries, weights, positions, angles)
    for row in range(9):
        one = slice(row, row + 1)
        alone = quantize_index_queries(queries[one], weights[one], positions[one], angles)
        assert torch.equal(together[0][one].view(torch.uint8), alone[0].view(torch.uint8))
        assert torch.equal(together[1][one], alone[1])


def test_latent_entries_are_normed_but_for_their_rotary_part():
    compressed, weight = torch.randn(4, 24 + 8), torch.rand(24) + 0.5
    cache = torch.full((2, 64, 32), 9.0)
    store_latent(compressed, weight, EPS, torch.tensor([64, -1, 3, 127]), cache)
    entries = cache.view(-1, 32)
    for row, slot in ((0, 64), (2, 3), (3, 127)):
        latent = compressed[row, :24].double()
        normed = latent / (latent.square().mean() + EPS).sqrt() * weight
        torch.testing.assert_close(entries[slot, :24].double(), normed, rtol=1e-5, atol=1e-6)
        assert torch.equal(entries[slot, 24:], compressed[row, 24:])
    assert int((cache == 9.0).all(dim=-1).sum()) == 125


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.zeros(4, dtype=torch.int32), "slot_mapping is torch.int32"),
        (torch.zeros(3, dtype=torch.int64), r"slot_mapping has shape \(3,\)"),
    ],
)
def test_wrong_slots_are_named(slots, message):
    with pytest.raises(ValueError, match=message):
        store_latent(torch.randn(4, 32), torch.ones(24), EPS, slots, torch.zeros(2, 64, 32))
