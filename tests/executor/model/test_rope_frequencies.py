"""Rotary frequencies and their scaling against hand-written formulas."""

from __future__ import annotations

import math

import pytest
import torch
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.spec import (
    DividedRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
)


def test_plain_frequencies():
    expected = torch.tensor([1.0, 100.0 ** (-1 / 2)], dtype=torch.float64)
    torch.testing.assert_close(rope_frequencies(4, 100.0, None), expected)


def test_linear_and_divided():
    plain = rope_frequencies(4, 100.0, None)
    torch.testing.assert_close(rope_frequencies(4, 100.0, LinearRopeScaling(4.0)), plain / 4)
    divided = rope_frequencies(4, 100.0, DividedRopeScaling((1.0, 8.0)))
    torch.testing.assert_close(divided, plain / torch.tensor([1.0, 8.0], dtype=torch.float64))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama3_follows_the_wavelengths(head_dim):
    """As in Meta's apply_scaling: long waves divided, short ones kept, smooth in between."""
    scaling = Llama3RopeScaling(8.0, 1.0, 4.0, 8192)
    got = rope_frequencies(head_dim, 500_000.0, scaling).tolist()
    for frequency, scaled in zip(
        rope_frequencies(head_dim, 500_000.0, None).tolist(), got, strict=True
    ):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            expected = frequency
        elif wavelength > 8192 / 1.0:
            expected = frequency / 8.0
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected = (1 - smooth) * frequency / 8.0 + smooth * frequency
        assert scaled == pytest.approx(expected, rel=1e-12)


def test_table():
    table = cos_sin_table(torch.tensor([1.0, 0.1], dtype=torch.float64), 3)
    assert table.shape == (3, 4)
    assert table[2].tolist() == pytest.approx(
        [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]
    )
