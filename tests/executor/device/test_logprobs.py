"""Log-probabilities of steps on a device: those that steps on the host tell."""

from __future__ import annotations

import pytest
import torch
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.sampling import RowLogprobs, token_logprobs

from tests.executor.device.tiny import DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.test_logprobs import VOCAB, check, raw_logprobs, told
from tests.executor.engine.test_lossless import SCHEDULES
from tests.executor.engine.tiny import config, random_table

PROMPT = [(7 * i * i + i) % VOCAB for i in range(23)]


def driver_of(kind: str, schedule: str = "verify all", **changes) -> DeviceDriver:
    sizes = config(**changes)
    table = random_table(VOCAB, 0)
    drafter = {
        "none": NoDrafter,
        "ngram": lambda: NgramDrafter(3),
        "device": lambda: DeviceTableDrafter(table[1], sizes.max_num_seqs, 3),
    }[kind]()
    return DeviceDriver(
        PaddedTarget(table, max_context_tokens=128), drafter, SCHEDULES[schedule](), sizes
    )


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("kind", ["none", "ngram", "device"])
def test_output_logprobs_are_raw_and_of_the_tokens_committed(kind, temperature):
    driver = driver_of(kind)
    prompts = [[seed % VOCAB, 1, 2, 1, 2] for seed in range(6)]
    asked = [
        driver.submit(prompt, seed=1, temperature=temperature, max_tokens=30, logprobs=seed % 4)
        for seed, prompt in enumerate(prompts)
    ]
    silent = driver.submit(prompts[0], seed=1, temperature=temperature, max_tokens=30)
    driver.run()
    for num_top, (prompt, result) in enumerate(zip(prompts, asked, strict=True)):
        expected = raw_logprobs(prompt + result.token_ids)[len(prompt) - 1 :]
        check(told(result), expected, result.token_ids, num_top % 4)
    assert all(delta.logprobs == () for delta in silent.deltas)
    assert kind == "none" or driver.loop.stats().num_accepted_tokens > 0


def test_steps_that_tell_nothing_are_replayed():
    driver = driver_of("device")
    driver.submit([1, 2], seed=1, max_tokens=5, logprobs=1)
    driver.run()
    told_steps = driver.parts.graphs.num_eager.total()
    assert told_steps > 0
    driver.submit([1, 2], seed=1, max_tokens=20)
    driver.run()
    assert driver.parts.graphs.num_eager.total() == told_steps
    assert driver.parts.graphs.num_replays.total() > 0


@pytest.mark.parametrize("num_rows", [4, 7, 32])
def test_prompt_logprobs_come_with_the_first_tokens_whatever_the_chunks(num_rows):
    driver = driver_of("device", max_num_batched_tokens=num_rows)
    asked = driver.submit(PROMPT, seed=1, max_tokens=9, prompt_logprobs=2, logprobs=1)
    other = driver.submit(PROMPT, seed=1, max_tokens=9)
    driver.run()
    first, *rest = [delta for delta in asked.deltas if delta.token_ids]
    assert first.prompt_logprobs[0] is None
    check(first.prompt_logprobs[1:], raw_logprobs(PROMPT), PROMPT[1:], num_top=2)
    assert all(delta.prompt_logprobs == () for delta in [*rest, *other.deltas])


def test_preempted_requests_tell_everything_once():
    driver = driver_of("ngram", num_kv_blocks=20, max_num_batched_tokens=12)
    prompts = [[seed % VOCAB, 1, 2, 1, 2] for seed in range(6)]
    results = [
        driver.submit(prompt, seed=seed, max_tokens=30, logprobs=1, prompt_logprobs=1)
        for seed, prompt in enumerate(prompts)
    ]
    driver.run()
    assert driver.loop.stats().num_preemptions > 0
    for prompt, result in zip(prompts, results, strict=True):
        expected = raw_logprobs(prompt + result.token_ids)
        check(told(result), expected[len(prompt) - 1 :], result.token_ids, 1)
        (values,) = [delta.prompt_logprobs for delta in result.deltas if delta.prompt_logprobs]
        check(values[1:], expected[: len(prompt) - 1], prompt[1:], 1)


def test_rows_are_those_of_the_host():
    logits = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    logits[3, 7] = torch.nan
    logits[5, 1] = torch.inf
    tokens, num_top = torch.arange(9), [3, 0, 5, 2, 1, 4, 5, 0, 2]
    rows = RowLogprobs.of(logits, tokens, max(num_top)).to_host()
    found = rows.told(num_top)
    expected = token_logprobs(logits, tokens.tolist(), num_top)
    for one, other in zip(found, expected, strict=True):
        assert one.top_token_ids == other.top_token_ids
        assert one.logprob == pytest.approx(other.logprob, nan_ok=True)
        assert one.top_logprobs == pytest.approx(other.top_logprobs, nan_ok=True)
