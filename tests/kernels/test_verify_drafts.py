"""Device verification against the float64 reference, and that against the executor's own."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from specsched_executor.core import SamplingParams
from specsched_executor.sampling import (
    LogitRules,
    SamplingTensors,
    VerificationInputs,
    keyed_uniforms,
)
from specsched_executor.sampling import Purpose as ExecutorPurpose
from specsched_executor.sampling import verify_drafts as executor_verify
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.reference.uniforms import Purpose, keyed_uniform
from specsched_kernels.reference.verify_drafts import SamplingInputs
from specsched_kernels.verify_drafts import VerifyOutcome, verify_drafts

MODES = ("greedy", "plain", "min_p", "top_k", "top_p", "mixed")


def parameters(mode: str, num_requests: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    temperature = torch.rand(num_requests, generator=generator) + 0.4
    top_k = torch.zeros(num_requests, dtype=torch.int64)
    top_p = torch.ones(num_requests)
    min_p = torch.zeros(num_requests)
    if mode == "greedy":
        temperature.zero_()
    if mode in {"top_k", "mixed"}:
        top_k = torch.randint(0, 12, (num_requests,), generator=generator)
    if mode in {"top_p", "mixed"}:
        top_p = torch.rand(num_requests, generator=generator) * 0.9 + 0.1
    if mode in {"min_p", "mixed"}:
        min_p = (torch.rand(num_requests, generator=generator) - 0.3).clamp(min=0.0)
        min_p[3::7] = 1.0
    if mode == "mixed":
        temperature[::3] = 0.0
    seeds = torch.randint(-(2**62), 2**62, (num_requests,), generator=generator)
    return {
        "temperature": temperature,
        "min_p": min_p,
        "top_k": top_k,
        "top_p": top_p,
        "seeds": seeds,
        "keeps_own_sample": torch.arange(num_requests) % 4 == 2,
    }


def random_inputs(
    seed: int, mode: str, r: int, k: int, vocab: int, *, stochastic: bool
) -> SamplingInputs:
    """Drafts close to the target, so that prefixes of every length are accepted."""
    generator = torch.Generator().manual_seed(seed)
    verify_lens = torch.randint(0, k + 1, (r,), generator=generator).to(torch.int32)
    num_rows = verify_lens + 1
    num_rows[1::4] = 0  # Inside a chunked prefill: no logits.
    verify_lens = torch.where(num_rows == 0, 0, verify_lens)
    starts = torch.cat([torch.zeros(1), num_rows.cumsum(0)]).to(torch.int32)
    logits = torch.randn(int(starts[-1]) + 3, vocab, generator=generator) * 3
    chosen = parameters(mode, r, generator)
    distribution = None
    drafts = torch.randint(0, vocab, (r, k), generator=generator)
    positions = torch.randint(0, 5000, (r,), generator=generator)
    if stochastic:
        noise = torch.randn(r, k, vocab, generator=generator)
        row = (starts[:-1, None].long() + torch.arange(k)).clamp(max=len(logits) - 1)
        distribution = (logits[row] + noise).softmax(-1)
        drafts = torch.multinomial(distribution.flatten(0, 1), 1, generator=generator).view(r, k)
    inputs = SamplingInputs(
        logits,
        starts,
        verify_lens,
        positions,
        drafts,
        draft_distribution=None if distribution is None else DraftDistribution.of(distribution),
        **chosen,
    )
    if not stochastic:
        # Half of the drafts are what the request would sample there.
        follow_own_samples(inputs, generator)
    return inputs


def follow_own_samples(inputs: SamplingInputs, generator: torch.Generator) -> None:
    k = inputs.draft_token_ids.shape[1]
    for _ in range(k):
        outcome = verify_drafts(inputs)
        for request, accepted in enumerate(outcome.num_accepted.tolist()):
            keep = torch.rand((), generator=generator) < 0.3
            if accepted < int(inputs.verify_lens[request]) and not keep:
                inputs.draft_token_ids[request, accepted] = outcome.token_ids[request, accepted]


def probabilities_of(inputs: SamplingInputs) -> torch.Tensor | None:
    if inputs.draft_distribution is None:
        return None
    return inputs.draft_distribution.logits.exp()  # as DraftDistribution.of leaves them


def cut_by_min_p(inputs: SamplingInputs) -> torch.Tensor:
    """The logits as the executor's own rule leaves them to those who sample."""
    logits, starts = inputs.logits.clone(), inputs.logit_start_loc.tolist()
    for request, (first, end) in enumerate(itertools.pairwise(starts)):
        params = SamplingParams(
            temperature=float(inputs.temperature[request]), min_p=float(inputs.min_p[request])
        )
        rules = LogitRules.of(params, 1)
        if rules is not None:
            rules.apply(logits[first:end], [0], [])
    return logits


def committed(outcome: VerifyOutcome, request: int) -> list[int]:
    return outcome.token_ids[request, : int(outcome.num_accepted[request]) + 1].tolist()


def move(record, device: str):
    moved = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            value = value.to(device)
        elif value is not None:
            value = move(value, device)
        moved[field.name] = value
    return type(record)(**moved)


def run_device_code(inputs: SamplingInputs, device: str, **options: int) -> VerifyOutcome:
    from specsched_kernels.triton.verify_drafts import verify_drafts as launch

    r, k = inputs.verify_lens.shape[0], inputs.draft_token_ids.shape[1]
    out = VerifyOutcome.empty(r, k, device)
    out.token_ids.fill_(-77)
    out.num_accepted.fill_(-77)
    launch(move(inputs, device), out, **options)
    return VerifyOutcome(out.token_ids.cpu(), out.num_accepted.cpu(), out.faulty.cpu())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stochastic", [False, True])
def test_device_code_commits_what_the_reference_does(
    device: str, mode: str, stochastic: bool
) -> None:
    num_requests, k, seeds = (4, 2, 1) if device == "cpu" else (99, 4, 4)
    seen = set()
    for seed in range(seeds):
        inputs = random_inputs(seed, mode, num_requests, k, 97, stochastic=stochastic)
        expected, got = verify_drafts(inputs), run_device_code(inputs, device)
        assert torch.equal(got.num_accepted, expected.num_accepted)
        assert torch.equal(got.token_ids, expected.token_ids)
        assert not got.faulty.any()
        seen |= set(expected.num_accepted.tolist())
    assert device == "cpu" or len(seen) >= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stochastic", [False, True])
def test_reference_commits_what_the_executor_does(mode: str, stochastic: bool) -> None:
    for seed in range(3):
        inputs = random_inputs(seed, mode, 21, 5, 61, stochastic=stochastic)
        mine = verify_drafts(inputs)
        theirs = executor_verify(
            VerificationInputs(
                logits=cut_by_min_p(inputs)[: int(inputs.logit_start_loc[-1])],
                logit_start_loc=inputs.logit_start_loc.long(),
                verify_lens=inputs.verify_lens.long(),
                output_positions=inputs.output_positions,
                draft_token_ids=inputs.draft_token_ids,
                params=SamplingTensors(
                    inputs.temperature,
                    inputs.top_k,
                    inputs.top_p,
                    inputs.seeds,
                    inputs.keeps_own_sample,
                ),
                draft_distribution=probabilities_of(inputs),
            )
        )
        samples = inputs.logit_start_loc.diff() > 0
        assert torch.equal(mine.num_accepted[samples].long(), theirs.num_accepted[samples])
        for request in samples.nonzero()[:, 0].tolist():
            accepted = int(mine.num_accepted[request])
            expected = theirs.token_ids[request, : accepted + 1].tolist()
            assert committed(mine, request) == expected


def test_a_faulty_row_fails_its_request_alone(device: str) -> None:
    inputs = random_inputs(5, "plain", 6, 3, 33, stochastic=False)
    clean = verify_drafts(inputs)
    starts = inputs.logit_start_loc.tolist()
    inputs.logits[starts[0], 7] = float("nan")
    inputs.logits[starts[2]] = float("-inf")
    inputs.logits[starts[3], 5] = float("inf")
    inputs.logits[starts[4], 1:5] = float("-inf")
    expected, got = verify_drafts(inputs), run_device_code(inputs, device)
    assert (
        got.faulty.tolist() == expected.faulty.tolist() == [True, False, True, True, False, False]
    )
    assert committed(got, 4) == committed(expected, 4)
    assert committed(got, 5) == committed(clean, 5)


def test_uniforms_are_the_executors() -> None:
    for seed, position, purpose in [(0, 0, 0), (-5, 7, 1), (2**62, 10**6, 2), (123, 1, 3)]:
        mine = keyed_uniform(seed, position, Purpose(purpose))
        theirs = keyed_uniforms(
            torch.tensor(seed), torch.tensor(position), ExecutorPurpose(purpose)
        )
        assert mine == float(theirs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("stochastic", [False, True])
def test_first_tokens_have_the_targets_distribution(stochastic: bool) -> None:
    """Chi-square over 200,000 requests that share one target row and differ in their seeds."""
    num_requests, vocab = 200_000, 24
    generator = torch.Generator().manual_seed(0)
    target = (torch.randn(vocab, generator=generator) * 1.2).softmax(-1)
    draft = (torch.randn(vocab, generator=generator) * 1.2).softmax(-1)
    drafts = torch.multinomial(draft, num_requests, replacement=True, generator=generator)
    ones = torch.ones(num_requests)
    inputs = SamplingInputs(
        logits=target.log().repeat(2 * num_requests, 1),
        logit_start_loc=torch.arange(0, 2 * num_requests + 1, 2, dtype=torch.int32),
        verify_lens=ones.to(torch.int32),
        output_positions=ones.long() * 9,
        draft_token_ids=drafts[:, None],
        temperature=ones,
        top_k=torch.zeros(num_requests, dtype=torch.int64),
        top_p=ones,
        seeds=torch.arange(num_requests),
        draft_distribution=DraftDistribution.of(draft.repeat(num_requests, 1, 1))
        if stochastic
        else None,
    )
    outcome = run_device_code(inputs, "cuda")
    for tokens in (outcome.token_ids[:, 0], outcome.token_ids[outcome.num_accepted == 1, 1]):
        counts = torch.bincount(tokens, minlength=vocab).double()
        expected = target.double() * len(tokens)
        # 23 degrees of freedom: above 60 in 4 of 100,000 runs of a right sampler.
        assert ((counts - expected) ** 2 / expected).sum() < 60


@pytest.mark.parametrize("stochastic", [False, True])
def test_drafts_can_be_tables_by_slot(device: str, stochastic: bool) -> None:
    inputs = random_inputs(1, "plain", 5, 3, 61, stochastic=stochastic)
    expected = verify_drafts(inputs)
    slot_ids = torch.tensor([6, 0, 3, 7, 2])
    drafts = torch.randint(0, 61, (9, 3))
    drafts[slot_ids] = inputs.draft_token_ids
    distribution = None
    if inputs.draft_distribution is not None:
        distribution = DraftDistribution.empty(9, 3, 61)
        distribution.store(slot_ids, probabilities_of(inputs))
    tables = dataclasses.replace(
        inputs, draft_token_ids=drafts, draft_distribution=distribution, slot_ids=slot_ids
    )
    assert expected.num_accepted.any()
    for got in (verify_drafts(tables), run_device_code(tables, device)):
        assert torch.equal(got.num_accepted, expected.num_accepted)
        assert torch.equal(got.token_ids, expected.token_ids)


@pytest.mark.parametrize("mode", ["min_p", "top_k", "top_p", "mixed"])
@pytest.mark.parametrize("max_candidates", [64, 8])
@pytest.mark.parametrize("stochastic", [False, True])
def test_candidates_settle_rows_of_a_large_vocabulary_or_all_of_it_is_searched(
    device: str, mode: str, max_candidates: int, stochastic: bool
) -> None:
    """Some rows have fewer candidates than there is room for, some more, some too few."""
    num_requests, k, vocab = (3, 1, 300) if device == "cpu" else (99, 4, 5003)
    inputs = random_inputs(2, mode, num_requests, k, vocab, stochastic=stochastic)
    expected = verify_drafts(inputs)
    got = run_device_code(inputs, device, max_candidates=max_candidates)
    assert torch.equal(got.num_accepted, expected.num_accepted)
    assert torch.equal(got.token_ids, expected.token_ids)


@pytest.mark.parametrize("stochastic", [False, True])
def test_tokens_that_tie_with_the_last_one_kept_are_kept(device: str, stochastic: bool) -> None:
    inputs = random_inputs(3, "mixed", 6, 2, 97, stochastic=stochastic)
    inputs.logits.copy_(inputs.logits.round())
    expected, got = verify_drafts(inputs), run_device_code(inputs, device, max_candidates=32)
    assert torch.equal(got.num_accepted, expected.num_accepted)
    assert torch.equal(got.token_ids, expected.token_ids)
