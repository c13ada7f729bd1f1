"""Drafts drawn in compiled code, against torch over the same rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_executor.sampling.distribution import draw
from specsched_kernels.cpu.draw_drafts import draw_drafts

NUM_POSITIONS = 3


def drawn(
    logits: torch.Tensor,
    temperatures: list[float],
    uniforms: torch.Tensor,
    position: int,
    *,
    workers: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits of one position, which base and bias add up to; others have a base of NaN."""
    num_requests, vocab_size = logits.shape
    bias = torch.linspace(-2.0, 2.0, vocab_size).round().repeat(num_requests, 1)
    base = torch.full((num_requests, NUM_POSITIONS, vocab_size), torch.nan)
    base[:, position] = logits - bias
    token_ids = torch.full((num_requests, NUM_POSITIONS), -7)
    distribution = torch.full((num_requests, NUM_POSITIONS, vocab_size), -1.0)
    draw_drafts(
        base.numpy(),
        bias.numpy(),
        np.array(temperatures, dtype=np.float32),
        uniforms.numpy(),
        position,
        token_ids.numpy(),
        distribution.numpy(),
        workers,
    )
    return token_ids, distribution


@pytest.mark.parametrize("vocab_size", [1, 5, 512, 1300])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_draft_and_its_distribution_are_those_of_torch(vocab_size, temperature):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(40, vocab_size, generator=generator) * 4
    uniforms = torch.rand(40, NUM_POSITIONS, generator=generator, dtype=torch.float64)
    token_ids, distribution = drawn(logits, [temperature] * 40, uniforms, 1)
    expected = torch.softmax(logits / temperature, dim=-1)
    torch.testing.assert_close(distribution[:, 1], expected, rtol=1e-5, atol=1e-7)
    # Sums are rounded differently, so a uniform that all but meets a border may fall beside it.
    assert (token_ids[:, 1] == draw(expected, uniforms[:, 1])).float().mean() >= 0.95
    untouched = [0, 2]
    assert (token_ids[:, untouched] == -7).all()
    assert (distribution[:, untouched] == -1).all()


def test_tokens_have_the_distribution_that_is_told():
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf, 0.5]]).repeat(20_000, 1)
    uniforms = torch.rand(20_000, NUM_POSITIONS, dtype=torch.float64)
    token_ids, distribution = drawn(logits, [0.7] * 20_000, uniforms, 0)
    counts = torch.bincount(token_ids[:, 0], minlength=5) / 20_000
    told = distribution[0, 0]
    assert told[3] == 0
    assert counts[3] == 0
    deviation = (told * (1 - told) / 20_000).sqrt()
    assert ((counts - told).abs() <= 5 * deviation).all()


def test_who_does_not_draw_gets_the_likeliest_token_and_no_distribution():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 9.0]])
    uniforms = torch.zeros(2, NUM_POSITIONS, dtype=torch.float64)
    token_ids, distribution = drawn(logits, [0.0, 1.0], uniforms, 2)
    assert token_ids[0, 2] == 1
    assert (distribution[0] == -1).all()
    assert token_ids[1, 2] == 0, "the first token of any mass covers a uniform of 0"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_drafts_one_token_for_certain(value):
    logits = torch.tensor([[0.0, value, 1.0]])
    uniforms = torch.full((1, NUM_POSITIONS), 0.9, dtype=torch.float64)
    token_ids, distribution = drawn(logits, [1.0], uniforms, 0)
    assert token_ids[0, 0] == 0
    assert distribution[0, 0].tolist() == [1.0, 0.0, 0.0]


def test_threads_do_not_change_a_bit():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 1300, generator=generator)
    uniforms = torch.rand(7, NUM_POSITIONS, generator=generator, dtype=torch.float64)
    temperatures = [0.0, 1.0, 0.3, 2.0, 0.0, 1.0, 1.0]
    alone, together = (
        drawn(logits, temperatures, uniforms, 1, workers=workers) for workers in (1, 2)
    )
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))
