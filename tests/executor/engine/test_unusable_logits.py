"""A request whose logits are NaN fails alone: others, beside it or after it, notice nothing."""

import pytest
import torch
from specsched_executor.core import RequestError
from specsched_executor.drafters import NgramDrafter
from specsched_executor.model import DecoderModel, load_model

from tests.executor.engine.test_lossless import SCHEDULES
from tests.executor.engine.tiny import (
    Driver,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)
from tests.executor.model.checkpoints import random_model, save_folder

VOCAB = 6
POISON = 5


def poisoned_target() -> TableTarget:
    """After POISON, twice in a row, nothing is a number."""
    table = random_table(VOCAB, 0)
    table[:, :, POISON] = 0
    table /= table.sum(axis=-1, keepdims=True)
    target = TableTarget(table)
    target.logits[POISON] = torch.nan
    return target


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {}, {"min_p": 0.1, "logprobs": 2}])
@pytest.mark.parametrize("drafter", ["ngram", "stochastic"])
def test_only_the_request_itself_fails(drafter, sampling):
    def run(prompts):
        drafters = {
            "ngram": NgramDrafter(3),
            "stochastic": StochasticDrafter(random_table(VOCAB, 1)[0], 3),
        }
        schedule = SCHEDULES["verify all"]()
        driver = Driver(poisoned_target(), drafters[drafter], schedule, config())
        results = [driver.submit(p, seed=7, max_tokens=30, **sampling) for p in prompts]
        driver.run()
        return results, driver.loop.stats()

    sound = [[1, 2, 1], [2, 1, 2]]
    expected, _ = run(sound)
    (first, bad, second), stats = run([sound[0], [1, POISON, POISON], sound[1]])
    assert (bad.finish_reason, bad.token_ids) == ("error", [])
    assert bad.last.error.endswith("not finite (NaN or infinite)")
    assert (stats.num_failed_requests, stats.num_failed_steps) == (1, 0)
    if drafter == "ngram" or sampling == {"temperature": 0.0}:
        assert [first.token_ids, second.token_ids] == [r.token_ids for r in expected]
    assert [first.finish_reason, second.finish_reason] == ["length", "length"]


def test_a_prompt_whose_own_logprobs_are_not_numbers_fails():
    driver = Driver(poisoned_target(), NgramDrafter(3), SilentTransport(), config())
    prompt = [1, POISON, POISON, 1, 2]
    silent = driver.submit(prompt, max_tokens=3)
    asking = driver.submit(prompt, max_tokens=3, prompt_logprobs=0)
    driver.run()
    assert silent.finish_reason == "length"
    assert asking.finish_reason == "error"


# ===================== A real model =====================


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint in which one token's embedding is NaN."""
    model = random_model("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
    return save_folder(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def decoder(folder) -> DecoderModel:
    return load_model(folder).model


def repeating(first: int, length: int) -> list[int]:
    return [first + i % 4 for i in range(length)]


@pytest.mark.parametrize("block_size", [16, 5])
def test_keys_and_values_that_are_not_numbers_spoil_no_other_request(decoder, block_size):
    """Block by block the cache is handed on: what NaN left behind must not be read."""

    def run(prompts):
        sizes = config(num_kv_blocks=24, block_size=block_size, max_num_batched_tokens=24)
        driver = Driver(decoder, NgramDrafter(3), SCHEDULES["verify all"](), sizes)
        results = [driver.submit(p, temperature=0.0, max_tokens=12) for p in prompts]
        driver.run()
        return results

    sound = [repeating(first, 10 + first) for first in (10, 20, 30)]
    expected = [run([prompt])[0].token_ids for prompt in sound]
    mixed = []
    for prompt in sound:
        mixed += [[*prompt, POISON, 9], prompt]
    results = run(mixed)
    assert [result.finish_reason for result in results[::2]] == ["error"] * 3
    assert [result.token_ids for result in results[1::2]] == expected


def test_rules_change_the_logits_of_a_real_model_in_place(decoder):
    """A model's logits are inference tensors, which only some code may write to."""
    driver = Driver(decoder, NgramDrafter(3), SilentTransport(), config(block_size=16))
    plain = driver.submit(repeating(10, 12), temperature=0.0, max_tokens=8)
    ruled = driver.submit(
        repeating(10, 12),
        temperature=0.0,
        max_tokens=8,
        min_tokens=4,
        stop_token_ids=(3,),
        presence_penalty=2.0,
        logit_bias=((40, 100.0),),
    )
    driver.run()
    assert ruled.finish_reason == plain.finish_reason == "length"
    assert set(ruled.token_ids) == {40}
    assert 40 not in plain.token_ids


def test_a_request_that_leaves_no_token_to_sample_is_refused():
    driver = Driver(poisoned_target(), NgramDrafter(3), SilentTransport(), config())
    every_id = tuple(range(VOCAB))
    with pytest.raises(RequestError, match="min_tokens is 1 and all 6 tokens end the output"):
        driver.submit([1], min_tokens=1, max_tokens=2, stop_token_ids=every_id)
    one_left = driver.submit([1], min_tokens=1, max_tokens=1, stop_token_ids=every_id[1:])
    at_once = driver.submit([1], max_tokens=1, stop_token_ids=every_id)
    driver.run()
    assert one_left.token_ids == [0]
    assert at_once.finish_reason == "stop"
