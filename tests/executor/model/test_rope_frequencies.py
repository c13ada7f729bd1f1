"""Rotary frequencies and their scaling against hand-written formulas."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from specsched_executor.model.huggingface import ConfigFacts
from specsched_executor.model.huggingface.rope import read_rope
from specsched_executor.model.rope import cos_sin_table, rope_frequencies
from specsched_executor.model.spec import (
    DividedRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    YarnRopeScaling,
)
from transformers import DeepseekV32Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


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


@pytest.mark.parametrize(
    ("rotary_dim", "factor", "original", "betas"),
    [(64, 40.0, 4096, (32, 1)), (32, 4.0, 2048, (16, 2)), (16, 8.0, 32_768, (32, 1))],
)
def test_yarn_is_that_of_transformers(rotary_dim, factor, original, betas):
    """The first is DeepSeek-V3.2 as published."""
    settings = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
    }
    config = DeepseekV32Config(qk_rope_head_dim=rotary_dim, rope_parameters=settings)
    expected, amplitude = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    facts = ConfigFacts(Path("config.json"), {"rope_parameters": settings})
    rope = read_rope(facts, ("yarn",))
    assert rope.scaling == YarnRopeScaling(factor, original, *betas, pytest.approx(amplitude))
    assert rope.softmax_factor == pytest.approx((0.1 * math.log(factor) + 1) ** 2)
    frequencies = rope_frequencies(rotary_dim, rope.theta, rope.scaling)
    torch.testing.assert_close(frequencies.float(), expected)
    assert not torch.equal(frequencies, rope_frequencies(rotary_dim, rope.theta, None))
    table = cos_sin_table(frequencies, 2, rope.scaling)
    assert float(table[0, 0]) == pytest.approx(amplitude)


def test_table():
    table = cos_sin_table(torch.tensor([1.0, 0.1], dtype=torch.float64), 3)
    assert table.shape == (3, 4)
    assert table[2].tolist() == pytest.approx(
        [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]
    )
