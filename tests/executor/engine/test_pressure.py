"""Random load on few slots and blocks: every request comes out as it would alone."""

import random
from types import NoneType

import pytest
from specsched_executor.core import PAD_SLOT, RequestError
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.delivery import ABORTED
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns

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


class Letters:
    """Token 0 is "a", and so on."""

    def decode(self, token_ids) -> str:
        return "".join(chr(ord("a") + token_id) for token_id in token_ids)


def target() -> TableTarget:
    return TableTarget(random_table(VOCAB, 11), max_context_tokens=64, eos=(EOS,))


def random_request(rng: random.Random) -> tuple[list[int], dict]:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 3, 5, 17, 30]))]
    sampling = {
        "temperature": rng.choice([0.0, 0.7, 1.0]),
        "top_k": rng.choice([0, 0, 3]),
        "seed": rng.randrange(1 << 40),
        "max_tokens": rng.choice([1, 7, 25, 25, None]),
        "ignore_eos": rng.random() < 0.8,
        "stop_token_ids": (2,) if rng.random() < 0.1 else (),
        "stop": ("dab", "bc") if rng.random() < 0.15 else (),
        "min_tokens": rng.choice([0, 0, 1]),
    }
    return prompt, sampling


def solo(prompt, sampling) -> tuple[list[int], str]:
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(), detokenizer=Letters())
    result = driver.submit(prompt, **sampling)
    driver.run()
    return result.token_ids, result.finish_reason


def run_load(seed: int, drafter, num_requests: int, **sizes):
    """Arrivals, aborts and lost plans at random instants: (requests, results, aborted, driver).

    Every 40 arrivals the load changes between a trickle and more than there is room for.
    """
    rng = random.Random(seed)
    transport = ScriptedTransport(
        lambda rows, request: rng.randrange(int(request.num_draft_tokens.sum()) + 1), lost=5
    )
    tight = {"num_kv_blocks": 16, "max_num_batched_tokens": 12, "max_num_seqs": 6} | sizes
    driver = Driver(target(), drafter, transport, config(**tight), detokenizer=Letters())
    requests, results, aborted = [], [], set()
    while len(requests) < num_requests or driver.loop.has_work:
        rate = 0.5 if len(requests) // 40 % 2 else 0.15
        if len(requests) < num_requests and rng.random() < rate:
            requests.append(random_request(rng))
            results.append(driver.submit(requests[-1][0], **requests[-1][1]))
        if results and rng.random() < 0.03:
            victim = rng.randrange(len(results))
            if results[victim].finish_reason is None:
                aborted.add(victim)
            driver.loop.abort(driver.active[victim])
        driver.loop.step()
    return requests, results, aborted, driver


@pytest.mark.parametrize("seed", range(2))
def test_requests_under_pressure_come_out_as_alone(seed):
    requests, results, aborted, driver = run_load(seed, NgramDrafter(3), 120)
    for index, (request, result) in enumerate(zip(requests, results, strict=True)):
        expected, reason = solo(*request)
        if index in aborted:
            assert result.finish_reason == ABORTED.finish_reason
            assert result.token_ids == expected[: len(result.token_ids)]
        else:
            assert (result.token_ids, result.finish_reason) == (expected, reason)
    stats = driver.loop.stats()
    assert stats.num_steps > 700  # of each seed
    assert stats.num_preemptions > 20
    assert 0 < len(aborted) < len(requests) / 2
    ends = {(result.finish_reason, type(result.last.matched_stop)) for result in results}
    assert ends >= {
        ("length", NoneType),
        ("stop", NoneType),  # the end of the text
        ("stop", int),
        ("stop", str),
        ("abort", NoneType),
    }
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


def arrival(request: ActiveRequest) -> int:
    """The number that the driver gave it."""
    return int(request.request_id.removeprefix("r"))


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


# ===================== Nobody starves, nobody waits for ever =====================


def test_a_long_request_is_served_among_an_endless_stream_of_short_ones():
    """The long one needs the whole cache, which is never empty while younger ones are let by."""
    rng = random.Random(1)
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(num_kv_blocks=12))
    for _ in range(4):
        driver.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
    long = driver.submit([1] * 40, max_tokens=9, ignore_eos=True)
    for _ in range(200):
        if rng.random() < 0.8:
            driver.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
        driver.loop.step()
        if long.finish_reason:
            break
    assert long.finish_reason == "length"
    assert driver.loop.has_work  # the stream never ran dry


def test_requests_that_each_need_all_of_the_cache_end_one_after_the_other():
    driver = Driver(target(), NgramDrafter(3), SilentTransport(), config(num_kv_blocks=8))
    results = [driver.submit([1, 2], max_tokens=31, ignore_eos=True, seed=i) for i in range(6)]
    driver.run(max_steps=600)
    assert [len(result.token_ids) for result in results] == [31] * 6
    assert driver.loop.stats().num_preemptions > 0
    assert [arrival(request) for request in driver.ended] == list(range(6))


def test_preempted_requests_come_back_before_those_that_arrived_later():
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(num_kv_blocks=10))
    for index in range(4):
        driver.submit([1, 2, 3], max_tokens=30, ignore_eos=True, seed=index)
    residency, admitted = driver.loop._residency, []
    while driver.loop.has_work:
        before = set(residency.running)
        driver.loop.step()
        admitted += [arrival(r) for r in residency.running if r not in before]
        waiting = [arrival(request) for request in residency.first_waiting(4)]
        assert waiting == sorted(waiting)
        assert all(arrival(r) < min(waiting, default=99) for r in residency.running)
    assert residency.num_preemptions > 0
    assert len(admitted) >= 4


class Counted:
    """A request that counts what it is compared with."""

    slot_id = PAD_SLOT
    num_comparisons = 0
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.num_comparisons += 1
        return self is other


def test_requests_leave_a_long_queue_without_a_search():
    """All clients may go at once, and the engine's thread takes their requests out."""
    residency = Residency(BlockPool(4, 4), SlotColumns(1, 4, 16), lambda slot: None)
    requests = [Counted() for _ in range(1000)]
    for request in requests:
        residency.queue(request)
    assert residency.first_waiting(3) == requests[:3]
    Counted.num_comparisons = 0
    for request in reversed(requests[1:]):
        residency.drop(request)
    assert Counted.num_comparisons < len(requests)
    assert residency.first_waiting(3) == requests[:1]


def test_a_request_that_can_never_fit_is_refused_at_once_and_leaves_no_trace():
    driver = Driver(target(), NoDrafter(), SilentTransport(), config(num_kv_blocks=5))
    running = driver.submit([1, 2], max_tokens=10, ignore_eos=True, seed=3)
    driver.loop.step()
    with pytest.raises(RequestError, match="may reach 22 tokens; accepted: at most 21"):
        driver.submit([1] * 10, max_tokens=12)
    driver.run()
    assert running.token_ids == solo([1, 2], {"max_tokens": 10, "ignore_eos": True, "seed": 3})[0]


@pytest.mark.parametrize("num_prompt_tokens", range(58, 64))
def test_drafts_are_trimmed_near_the_context_end(num_prompt_tokens):
    """Of 64 positions: no row past the last one, nor a draft that could not be output."""
    drafter = StochasticDrafter(random_table(VOCAB, 12)[0], 3)
    driver = Driver(target(), drafter, SilentTransport(), config())
    result = driver.submit([1] * num_prompt_tokens, temperature=0, ignore_eos=True)
    num_left, num_verified = [64 - num_prompt_tokens], [0]
    while driver.loop.has_work:
        driver.loop.step()
        num_left.append(64 - num_prompt_tokens - len(result.token_ids))
        num_verified.append(driver.loop.stats().num_verified_tokens)
    for left, before, after in zip(num_left, num_verified, num_verified[1:], strict=False):
        assert after - before <= max(0, left - 1)
    assert (len(result.token_ids), result.finish_reason) == (64 - num_prompt_tokens, "length")
    expected = solo([1] * num_prompt_tokens, {"temperature": 0, "ignore_eos": True})
    assert result.token_ids == expected[0]
