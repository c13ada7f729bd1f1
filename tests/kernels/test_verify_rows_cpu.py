"""The compiled verification against the float64 reference, request by request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_kernels.cpu.uniforms import keyed_uniform
from specsched_kernels.cpu.verify_drafts import verify_rows
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference import uniforms as reference_uniforms
from specsched_kernels.reference.verify_drafts import SamplingInputs, verify_drafts
from specsched_kernels.verify_drafts import VerifyOutcome

NUM_DRAFTS = 4


def random_inputs(
    seed: int, vocab_size: int, *, stochastic: bool, num_requests: int = 40
) -> SamplingInputs:
    """Requests with 0 to 4 drafts, some greedy, some that do not sample, drafts often right."""
    generator = torch.Generator().manual_seed(seed)
    verify_lens = torch.randint(0, NUM_DRAFTS + 1, (num_requests,), generator=generator)
    num_rows = verify_lens + 1
    num_rows[::7], verify_lens[::7] = 0, 0
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), num_rows.cumsum(0)])
    logits = torch.randn(int(starts[-1]), vocab_size, generator=generator) * 4
    distribution = logits.new_zeros(num_requests, NUM_DRAFTS, vocab_size)
    drafts = torch.zeros(num_requests, NUM_DRAFTS, dtype=torch.int64)
    for request in range(num_requests):
        for offset in range(int(verify_lens[request])):
            near = logits[int(starts[request]) + offset]
            near = near + torch.randn(vocab_size, generator=generator)
            distribution[request, offset] = near.softmax(-1)
            drafts[request, offset] = torch.multinomial(near.softmax(-1), 1, generator=generator)
    temperature = torch.rand(num_requests, generator=generator) * 2
    temperature[::3] = 0
    return SamplingInputs(
        logits=logits,
        logit_start_loc=starts.to(torch.int32),
        verify_lens=verify_lens.to(torch.int32),
        output_positions=torch.randint(1, 4000, (num_requests,), generator=generator),
        draft_token_ids=drafts,
        temperature=temperature,
        top_k=torch.zeros(num_requests, dtype=torch.int64),
        top_p=torch.ones(num_requests),
        seeds=torch.randint(0, 2**62, (num_requests,), generator=generator),
        draft_distribution=DraftDistribution.of(distribution) if stochastic else None,
        keeps_own_sample=torch.arange(num_requests) % 5 == 4,
    )


def compiled(inputs: SamplingInputs, *, workers: int = 1) -> VerifyOutcome:
    num_requests, num_drafts = inputs.draft_token_ids.shape
    out = VerifyOutcome(
        torch.full((num_requests, num_drafts + 1), -7),
        torch.full((num_requests,), -7),
        torch.ones(num_requests, dtype=torch.bool),
    )
    drafted = inputs.draft_distribution
    verify_rows(
        inputs.logits.numpy(),
        inputs.logit_start_loc.long().numpy(),
        inputs.verify_lens.long().numpy(),
        inputs.output_positions.numpy(),
        inputs.draft_token_ids.numpy(),
        inputs.temperature.numpy(),
        inputs.seeds.numpy(),
        inputs.keeps_own_sample.numpy(),
        None if drafted is None else drafted.logits.exp().numpy(),
        out.token_ids.numpy(),
        out.num_accepted.numpy(),
        out.faulty.numpy(),
        workers,
    )
    return out


def reference(inputs: SamplingInputs) -> VerifyOutcome:
    num_requests, num_drafts = inputs.draft_token_ids.shape
    out = VerifyOutcome.empty(num_requests, num_drafts)
    verify_drafts(inputs, out)
    return out


def assert_same(inputs: SamplingInputs) -> VerifyOutcome:
    found, expected = compiled(inputs), reference(inputs)
    assert torch.equal(found.num_accepted, expected.num_accepted.long())
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.faulty, expected.faulty)
    return found


# Around one vector and around one block of tokens.
@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 17, 511, 512, 513, 1000])
@pytest.mark.parametrize("stochastic", [False, True])
def test_every_request_is_judged_as_the_reference_does(vocab_size: int, stochastic: bool) -> None:
    accepted = rejected = 0
    for seed in range(4):
        inputs = random_inputs(seed, vocab_size, stochastic=stochastic)
        found = assert_same(inputs)
        accepted += int((found.num_accepted > 0).sum())
        rejected += int((found.num_accepted < inputs.verify_lens).sum())
    assert accepted > 10
    assert rejected > 10 or vocab_size == 1


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 500, 599])
def test_a_row_that_is_not_finite_fails_its_request_alone(
    stochastic: bool, value: float, place: int
) -> None:
    inputs = random_inputs(5, 600, stochastic=stochastic)
    inputs.logits[::5, place] = value
    assert assert_same(inputs).faulty.any()


def test_masked_tokens_are_never_drawn() -> None:
    inputs = random_inputs(6, 600, stochastic=False)
    inputs.logits[:, 1:] = -torch.inf
    found = assert_same(inputs)
    assert (found.token_ids == 0).all()


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 1e6])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    inputs = random_inputs(7, 600, stochastic=False)
    inputs.temperature[:] = temperature
    found = compiled(inputs)
    assert not found.faulty.any()
    if temperature < 1:
        inputs.temperature[:] = 0
        assert torch.equal(found.token_ids, compiled(inputs).token_ids)


def test_a_draft_like_the_target_is_always_accepted() -> None:
    inputs = random_inputs(8, 600, stochastic=True)
    for request in range(len(inputs.verify_lens)):
        inputs.temperature[request] = 1
        inputs.keeps_own_sample[request] = False
        for offset in range(int(inputs.verify_lens[request])):
            row = inputs.logits[int(inputs.logit_start_loc[request]) + offset]
            row[:] = inputs.draft_distribution.logits[request, offset]
    found = compiled(inputs)
    # p(x) and q(x) agree to float32: a uniform just between them is as good as never.
    assert torch.equal(found.num_accepted, inputs.verify_lens.long())


def test_uniforms_are_the_reference_bit_for_bit() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        seed, position = (int(n) for n in generator.integers(0, 2**62, size=2))
        for purpose in reference_uniforms.Purpose:
            expected = reference_uniforms.keyed_uniform(seed, position, purpose)
            assert keyed_uniform(seed, position, int(purpose)) == expected


def test_threads_do_not_change_a_token():
    inputs = random_inputs(3, 1300, stochastic=True)
    alone, together = (compiled(inputs, workers=workers) for workers in (1, 2))
    assert torch.equal(alone.token_ids, together.token_ids)
    assert torch.equal(alone.num_accepted, together.num_accepted)
    assert torch.equal(alone.faulty, together.faulty)
