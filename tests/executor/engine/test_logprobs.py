"""Log-probabilities: the target's own, of committed tokens only, whatever was drafted."""

import itertools

import pytest
import torch
from specsched_executor.drafters import NgramDrafter, NoDrafter

from tests.executor.engine.test_lossless import SCHEDULES
from tests.executor.engine.tiny import (
    Driver,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)

VOCAB = 6
RULES = {"presence_penalty": 0.7, "min_p": 0.05, "logit_bias": ((2, 1.0),)}


def target() -> TableTarget:
    return TableTarget(random_table(VOCAB, 0), max_context_tokens=128)


def run(drafter, transport, *, num_requests=6, sizes=None, **sampling):
    driver = Driver(target(), drafter, transport, sizes or config())
    results = [
        driver.submit([seed % VOCAB, 1, 2, 1, 2], seed=seed, max_tokens=30, **sampling)
        for seed in range(num_requests)
    ]
    driver.run()
    return results, driver


def told(result):
    """Log-probabilities of a result's output, one for each token of every delta."""
    for delta in result.deltas:
        assert len(delta.logprobs) == len(delta.token_ids)
    return list(itertools.chain.from_iterable(delta.logprobs for delta in result.deltas))


def raw_logprobs(sequence: list[int]) -> torch.Tensor:
    """float64 [n - 1, V]: after each token but the last, from the table itself."""
    table = target().logits.double().log_softmax(-1)
    before = [sequence[0], *sequence[:-2]]
    return torch.stack([table[a, b] for a, b in zip(before, sequence[:-1], strict=True)])


def check(values, expected, tokens, num_top):
    for each, row, token in zip(values, expected, tokens, strict=True):
        assert each.logprob == pytest.approx(float(row[token]), abs=1e-5)
        top = row.topk(num_top)
        assert each.top_token_ids == tuple(top.indices.tolist())
        assert each.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("schedule", ["verify all", "any budget"])
def test_output_logprobs_are_raw_and_those_without_drafts(schedule, temperature):
    sampling = {"temperature": temperature, "logprobs": 3} | RULES
    plain, _ = run(NoDrafter(), SilentTransport(), **sampling)
    drafted, driver = run(NgramDrafter(3), SCHEDULES[schedule](), **sampling)
    assert driver.loop.stats().num_accepted_tokens > 0
    for seed, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        assert one.token_ids == other.token_ids
        assert told(one) == told(other)
        prompt = [seed % VOCAB, 1, 2, 1, 2]
        expected = raw_logprobs(prompt + one.token_ids)[len(prompt) - 1 :]
        check(told(one), expected, one.token_ids, num_top=3)


def test_output_logprobs_with_stochastic_drafts_belong_to_the_tokens_committed():
    drafter = StochasticDrafter(random_table(VOCAB, 0)[1], 3)
    results, driver = run(drafter, SCHEDULES["verify all"](), logprobs=2)
    assert driver.loop.stats().num_accepted_tokens > 0
    assert driver.loop.stats().num_verified_tokens > driver.loop.stats().num_accepted_tokens
    for seed, result in enumerate(results):
        prompt = [seed % VOCAB, 1, 2, 1, 2]
        expected = raw_logprobs(prompt + result.token_ids)[len(prompt) - 1 :]
        check(told(result), expected, result.token_ids, num_top=2)


def test_tokens_past_a_stop_have_none():
    results, _ = run(NgramDrafter(3), SCHEDULES["verify all"](), logprobs=0, stop_token_ids=(3,))
    assert {result.finish_reason for result in results} >= {"stop"}
    for result in results:
        assert len(told(result)) == len(result.token_ids)


@pytest.mark.parametrize("num_rows", [4, 7, 32])
def test_prompt_logprobs_come_with_the_first_tokens_whatever_the_chunks(num_rows):
    prompt = [(7 * i * i + i) % VOCAB for i in range(23)]
    sizes = config(max_num_batched_tokens=num_rows)
    driver = Driver(target(), NgramDrafter(3), SCHEDULES["verify all"](), sizes)
    asked = driver.submit(prompt, seed=1, max_tokens=9, prompt_logprobs=2, logprobs=1)
    other = driver.submit(prompt, seed=1, max_tokens=9)
    driver.run()
    assert asked.token_ids == other.token_ids
    first, *rest = [delta for delta in asked.deltas if delta.token_ids]
    assert first.prompt_logprobs[0] is None
    check(first.prompt_logprobs[1:], raw_logprobs(prompt), prompt[1:], num_top=2)
    assert all(delta.prompt_logprobs == () for delta in [*rest, *other.deltas])
    assert all(delta.logprobs == () for delta in other.deltas)


def test_a_prompt_of_one_token_has_no_value_to_tell():
    driver = Driver(target(), NoDrafter(), SilentTransport(), config())
    result = driver.submit([3], max_tokens=1, prompt_logprobs=5)
    driver.run()
    assert result.deltas[0].prompt_logprobs == (None,)


def test_preempted_requests_tell_everything_once():
    sizes = config(num_kv_blocks=20, max_num_batched_tokens=12)
    sampling = {"logprobs": 1, "prompt_logprobs": 1, "frequency_penalty": 0.4}
    roomy, _ = run(NoDrafter(), SilentTransport(), **sampling)
    tight, driver = run(NgramDrafter(3), SCHEDULES["verify all"](), sizes=sizes, **sampling)
    assert driver.loop.stats().num_preemptions > 0
    for one, other in zip(roomy, tight, strict=True):
        assert one.token_ids == other.token_ids
        assert told(one) == told(other)
        prompts = [d.prompt_logprobs for d in other.deltas if d.prompt_logprobs]
        assert prompts == [one.deltas[0].prompt_logprobs]
