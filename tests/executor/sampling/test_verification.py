"""Verification against exact probabilities, many requests of one batch at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from specsched_executor.core import SamplingParams
from specsched_executor.sampling import (
    Purpose,
    SamplingTensors,
    VerificationInputs,
    draw,
    keyed_uniforms,
    verify_drafts,
)

from tests.executor.engine.statistics import looks_like

P = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.2, 0.6], [0.25, 0.25, 0.25, 0.25]])
Q = np.array([[0.1, 0.6, 0.2, 0.1], [0.4, 0.1, 0.4, 0.1]])
NUM_REQUESTS = 20_000


def inputs(
    verify_len: int, *, stochastic: bool, temperature: float = 1.0, repeatable: bool = False
) -> VerificationInputs:
    """Identical requests but for their seeds: rows p0, p1, p2, drafts from q0, q1."""
    n = NUM_REQUESTS
    seeds = torch.arange(n)
    q = torch.tensor(Q, dtype=torch.float32).expand(n, -1, -1)
    drafts = [
        draw(q[:, j], keyed_uniforms(seeds, torch.tensor(10 + j), Purpose.DRAFT)) for j in range(2)
    ]
    if not stochastic:
        drafts = [torch.full((n,), 1), torch.full((n,), 3)]
    rows = torch.tensor(P[: verify_len + 1], dtype=torch.float32).log()
    return VerificationInputs(
        logits=rows.repeat(n, 1),
        logit_start_loc=torch.arange(n + 1) * (verify_len + 1),
        verify_lens=torch.full((n,), verify_len),
        output_positions=torch.full((n,), 10),
        draft_token_ids=torch.stack(drafts, dim=1),
        params=SamplingTensors.of(
            [SamplingParams(temperature=temperature, seed=0, repeatable=repeatable)] * n,
            seeds.tolist(),
        ),
        draft_distribution=q if stochastic else None,
    )


def joint_counts(result) -> list[np.ndarray]:
    """Counts of token j among requests that committed one there, given nothing else."""
    committed = torch.arange(3) <= result.num_accepted[:, None]
    return [
        np.bincount(result.token_ids[committed[:, j], j].numpy(), minlength=4) for j in range(3)
    ]


@pytest.mark.parametrize("verify_len", [0, 1, 2])
@pytest.mark.parametrize("stochastic", [False, True])
def test_each_committed_token_has_the_targets_distribution(verify_len, stochastic):
    result = verify_drafts(inputs(verify_len, stochastic=stochastic))
    counts = joint_counts(result)
    for j in range(verify_len + 1):
        if counts[j].sum():
            assert looks_like(counts[j], P[j])
    assert counts[0].sum() == NUM_REQUESTS
    assert not result.faulty.any()


def test_the_test_has_power_against_a_small_bias():
    biased = P[0] + np.array([0.02, -0.02, 0, 0])
    assert not looks_like(np.round(biased * NUM_REQUESTS), P[0])


def test_stochastic_acceptance_rate_is_the_overlap():
    result = verify_drafts(inputs(1, stochastic=True))
    overlap = np.minimum(P[0], Q[0]).sum()
    sigma = (overlap * (1 - overlap) / NUM_REQUESTS) ** 0.5
    assert abs(result.num_accepted.double().mean().item() - overlap) < 4.5 * sigma


def test_deterministic_acceptance_rate_is_the_drafts_probability():
    result = verify_drafts(inputs(1, stochastic=False))
    sigma = (0.3 * 0.7 / NUM_REQUESTS) ** 0.5
    assert abs(result.num_accepted.double().mean().item() - P[0, 1]) < 4.5 * sigma


@pytest.mark.parametrize("stochastic", [False, True])
def test_repeatable_output_does_not_depend_on_the_verify_length(stochastic):
    results = [
        verify_drafts(inputs(length, stochastic=stochastic, repeatable=True))
        for length in (0, 1, 2)
    ]
    for result in results[1:]:
        assert torch.equal(result.token_ids[:, 0], results[0].token_ids[:, 0])


@pytest.mark.parametrize("stochastic", [False, True])
def test_greedy_commits_the_most_probable_tokens(stochastic):
    result = verify_drafts(inputs(2, stochastic=stochastic, temperature=0.0))
    committed = torch.arange(3) <= result.num_accepted[:, None]
    best = torch.tensor(P.argmax(axis=1)).expand(NUM_REQUESTS, -1)
    assert torch.equal(result.token_ids[committed], best[committed])


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}], ids=["whole", "cut"])
@pytest.mark.parametrize("verify_len", [0, 1])
def test_a_distribution_ends_where_the_longest_draft_does(verify_len, cut):
    whole = inputs(verify_len, stochastic=True)
    params = SamplingParams(temperature=1.0, seed=0, **cut)
    seeds = list(range(NUM_REQUESTS))
    whole = replace(whole, params=SamplingTensors.of([params] * NUM_REQUESTS, seeds))
    expected = verify_drafts(whole)
    result = verify_drafts(replace(whole, draft_distribution=whole.draft_distribution[:, :1]))
    assert torch.equal(result.token_ids, expected.token_ids)
    assert torch.equal(result.num_accepted, expected.num_accepted)


def test_requests_of_a_ragged_batch_are_judged_apart():
    """verify lengths 2, 0, 1 and a request that does not sample."""
    logits = torch.full((6, 4), -5.0)
    for row, token in enumerate([1, 2, 3, 0, 2, 2]):
        logits[row, token] = 5.0
    result = verify_drafts(
        VerificationInputs(
            logits=logits,
            logit_start_loc=torch.tensor([0, 3, 4, 4, 6]),
            verify_lens=torch.tensor([2, 0, 0, 1]),
            output_positions=torch.tensor([4, 9, 2, 7]),
            draft_token_ids=torch.tensor([[1, 2], [0, 0], [3, 3], [3, 2]]),
            params=SamplingTensors.of([SamplingParams(temperature=0)] * 4, [0] * 4),
        )
    )
    assert result.num_accepted.tolist() == [2, 0, 0, 0]
    assert result.token_ids[0].tolist() == [1, 2, 3]
    assert result.token_ids[1, 0].item() == 0
    assert result.token_ids[3, 0].item() == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_faulty_row_fails_its_request_alone(temperature, stochastic, value):
    given = inputs(1, stochastic=stochastic, temperature=temperature)
    clean = verify_drafts(given)
    given.logits[2 * 7, 0] = value  # the first row of request 7
    result = verify_drafts(given)
    assert torch.nonzero(result.faulty)[:, 0].tolist() == [7]
    others = torch.arange(NUM_REQUESTS) != 7
    assert torch.equal(result.token_ids[others], clean.token_ids[others])


def test_a_faulty_row_behind_a_rejection_was_never_needed():
    given = inputs(1, stochastic=False, temperature=0.0)  # draft 1, most probable 0: rejected
    given.logits[1::2] = float("nan")
    assert not verify_drafts(given).faulty.any()
