"""Random load on few slots and blocks: every request comes out as it would alone."""

import random

import pytest
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine.delivery import ABORTED

from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)

VOCAB = 5
EOS = 4


def target() -> TableTarget:
    return TableTarget(random_table(VOCAB, 11), max_context_tokens=64, eos=(EOS,))


def random_request(rng: random.Random) -> tuple[list[int], dict]:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 5, 17, 30]))]
    sampling = {
        "temperature": rng.choice([0.0, 0.7, 1.0]),
        "top_k": rng.choice([0, 0, 3]),
        "seed": rng.randrange(1 << 40),
        "max_tokens": rng.choice([1, 2, 7, 25, None]),
        "ignore_eos": rng.random() < 0.5,
        "stop_token_ids": (2,) if rng.random() < 0.2 else (),
        "min_tokens": rng.choice([0, 0, 1]),
    }
    return prompt, sampling


def solo(prompt, sampling) -> tuple[list[int], str]:
    driver = Driver(target(), NoDrafter(), SilentTransport(), config())
    result = driver.submit(prompt, **sampling)
    driver.run()
    return result.token_ids, result.finish_reason


def run_load(seed: int, drafter, num_requests: int, **sizes):
    """Arrivals, aborts and lost plans at random instants; (requests, results, driver)."""
    rng = random.Random(seed)
    transport = ScriptedTransport(
        lambda rows, request: rng.randrange(int(request.num_draft_tokens.sum()) + 1), lost=5
    )
    tight = {"num_kv_blocks": 18, "max_num_batched_tokens": 12} | sizes
    driver = Driver(target(), drafter, transport, config(**tight))
    requests, results, aborted = [], [], set()
    while len(requests) < num_requests or driver.loop.has_work:
        if len(requests) < num_requests and rng.random() < 0.3:
            requests.append(random_request(rng))
            results.append(driver.submit(requests[-1][0], **requests[-1][1]))
        if results and rng.random() < 0.03:
            victim = rng.randrange(len(results))
            if results[victim].finish_reason is None:
                aborted.add(victim)
            driver.loop.abort(driver.active[victim])
        driver.loop.step()
    return requests, results, aborted, driver


@pytest.mark.parametrize("seed", range(4))
def test_requests_under_pressure_come_out_as_alone(seed):
    requests, results, aborted, driver = run_load(seed, NgramDrafter(3), 60)
    for index, (request, result) in enumerate(zip(requests, results, strict=True)):
        expected, reason = solo(*request)
        if index in aborted:
            assert result.finish_reason == ABORTED.finish_reason
            assert result.token_ids == expected[: len(result.token_ids)]
        else:
            assert (result.token_ids, result.finish_reason) == (expected, reason)
    stats = driver.loop.stats()
    assert stats.num_preemptions > 0
    assert stats.num_failed_requests == stats.num_failed_steps == 0
    assert 0 < stats.num_accepted_tokens < stats.num_verified_tokens < stats.num_drafted_tokens
    assert stats.num_used_tokens == 0
    assert len(driver.ended) == len(requests)


@pytest.mark.parametrize("seed", range(2))
def test_no_step_runs_more_rows_or_drafts_than_allowed(seed):
    _, _, _, driver = run_load(seed, NgramDrafter(3), 40)
    assert max(driver.target.num_rows) <= 12
    stats = driver.loop.stats()
    assert stats.num_verified_tokens <= stats.num_scheduled_tokens <= stats.num_drafted_tokens


def test_greedy_output_of_a_stochastic_drafter_survives_preemption():
    drafter = StochasticDrafter(random_table(VOCAB, 12)[0], 3)
    requests, results, aborted, driver = run_load(7, drafter, 60)
    assert driver.loop.stats().num_preemptions > 0
    for index, (request, result) in enumerate(zip(requests, results, strict=True)):
        if index not in aborted and request[1]["temperature"] == 0:
            assert (result.token_ids, result.finish_reason) == solo(*request)


def test_admission_is_in_arrival_order():
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(max_num_seqs=2))
    results = [driver.submit([1] * 9, max_tokens=3, ignore_eos=True) for _ in range(6)]
    started: list[int] = []
    while driver.loop.has_work:
        driver.loop.step()
        started += [
            index for index, result in enumerate(results) if result.deltas and index not in started
        ]
    assert started == sorted(started)


def test_a_long_prompt_does_not_stop_others_from_decoding():
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(max_num_batched_tokens=4))
    short = driver.submit([1, 2], max_tokens=30, ignore_eos=True, temperature=0)
    driver.loop.step()
    driver.submit([3] * 40, max_tokens=1)
    before = len(short.token_ids)
    for _ in range(10):
        driver.loop.step()
    assert len(short.token_ids) == before + 10


def test_drafts_do_not_starve_a_prefill():
    sizes = config(max_num_seqs=4, max_num_batched_tokens=8)
    driver = Driver(
        target(), StochasticDrafter(random_table(VOCAB, 1)[0], 3), SilentTransport(), sizes
    )
    for _ in range(2):
        driver.submit([1], max_tokens=60, ignore_eos=True)
    for _ in range(3):
        driver.loop.step()
    late = driver.submit([3] * 9, max_tokens=1, ignore_eos=True)
    for _ in range(4):
        driver.loop.step()
    assert late.finish_reason == "length"


def test_tokens_near_the_context_end_are_not_drafted_past_it():
    driver = Driver(target(), NgramDrafter(3), SilentTransport(), config())
    result = driver.submit([1] * 50, temperature=0, ignore_eos=True)
    driver.run()
    assert len(result.token_ids) == 14
    assert result.finish_reason == "length"
    assert driver.loop.stats().num_verified_tokens <= 14
