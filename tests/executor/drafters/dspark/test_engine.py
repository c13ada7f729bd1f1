"""The drafter in the real engine: what comes out is the target's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from specsched_executor.drafters import NoDrafter
from specsched_executor.drafters.dspark import DSparkDrafter
from specsched_executor.evaluation.generation import evaluation_sizes, generate_answers
from specsched_executor.model import load_model

from tests.executor.model.checkpoints import VOCAB_SIZE, random_model, save_folder

from .small import CONFIG, random_checkpoint

K = CONFIG.block_size


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(save_folder(random_model(), tmp_path_factory.mktemp("target")))
    torch.set_num_threads(before)


def answers(loaded, prompts, sizes, *, drafts, temperature, max_tokens):
    drafter = NoDrafter()
    if drafts:
        drafter = DSparkDrafter(
            random_checkpoint(window=24),
            loaded.model,
            num_slots=sizes.max_num_seqs,
            max_draft_tokens=K,
            max_context_tokens=sizes.max_context_tokens,
        )
    return generate_answers(
        loaded, drafter, prompts, sizes, temperature=temperature, max_tokens=max_tokens
    )


def random_prompts(num, length):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, VOCAB_SIZE, (num, length), generator=generator).tolist()


@pytest.mark.parametrize(
    "pressure",
    [
        {},
        {"max_num_batched_tokens": 16},  # prompts in chunks
        {"num_kv_blocks": 9},  # not enough for all: requests are preempted
        {"max_num_seqs": 2},  # slots are used again and again
    ],
)
def test_greedy_answers_are_the_targets(loaded, pressure):
    prompts = random_prompts(7, 37)
    sizes = replace(evaluation_sizes(4, K, 100), **pressure)
    plain = answers(loaded, prompts, sizes, drafts=False, temperature=0.0, max_tokens=24)
    found = answers(loaded, prompts, sizes, drafts=True, temperature=0.0, max_tokens=24)
    assert found.token_ids == plain.token_ids
    assert len(found.outcomes.seed) > 7
    assert (found.outcomes.num_verified >= 1).all()


def test_sampled_answers_have_the_targets_distribution(loaded):
    """Two-sample chi-square of each position's token, drafted against not drafted."""
    num = 700
    sizes = evaluation_sizes(50, K, 32)
    prompt = random_prompts(1, 6)[0]
    samples = [
        answers(loaded, prompts, sizes, drafts=drafts, temperature=0.6, max_tokens=4)
        for drafts, prompts in ((True, [prompt] * num), (False, [prompt] * (2 * num)))
    ]
    assert samples[0].outcomes.num_verified.max() > 1
    # The second run's first half has the same seeds, so its other half is the independent one.
    drafted, plain = samples[0].token_ids, samples[1].token_ids[num:]
    for position in range(4):
        counts = torch.zeros(2, VOCAB_SIZE)
        for row, tokens in enumerate((drafted, plain)):
            for each in tokens:
                if len(each) > position:
                    counts[row, each[position]] += 1
        chi, freedom = _chi_square(counts)
        assert chi < freedom + 5 * (2 * freedom) ** 0.5


def _chi_square(counts):
    total = counts.sum(dim=0)
    is_big = total >= 10
    pooled = torch.cat((counts[:, is_big], counts[:, ~is_big].sum(dim=1, keepdim=True)), dim=1)
    pooled = pooled[:, pooled.sum(dim=0) > 0]
    expected = pooled.sum(dim=1, keepdim=True) * pooled.sum(dim=0) / pooled.sum()
    return float(((pooled - expected) ** 2 / expected).sum()), max(1, pooled.shape[1] - 1)
