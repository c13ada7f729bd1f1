"""The engine as its callers see it: threads, ends, faults."""

import threading

import pytest
import torch
from specsched_executor.core import GenerationRequest, RequestError, SamplingParams
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine import Engine, EngineConfig
from specsched_executor.engine_stopped import EngineStoppedError
from specsched_protocol.plan import FallbackReason

from tests.executor.engine.tiny import (
    Driver,
    Result,
    ScriptedTransport,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)

VOCAB = 6


class Waiting(Result):
    def __init__(self) -> None:
        super().__init__()
        self.is_done = threading.Event()

    def __call__(self, delta) -> None:
        super().__call__(delta)
        if delta.finish_reason:
            self.is_done.set()

    def wait(self) -> str:
        assert self.is_done.wait(30)
        return self.finish_reason


def request(request_id: str, prompt=(1, 2), **sampling) -> GenerationRequest:
    return GenerationRequest(request_id, tuple(prompt), SamplingParams(**sampling))


@pytest.fixture
def target() -> TableTarget:
    return TableTarget(random_table(VOCAB, 0), max_context_tokens=100_000)


@pytest.fixture
def engine(target):
    sizes = config(num_kv_blocks=30_000)
    engine = Engine(target, NgramDrafter(3), SilentTransport(), sizes)
    engine.start()
    yield engine
    engine.stop()


def test_serves_requests_of_many_threads(engine):
    results = [Waiting() for _ in range(24)]

    def submit(first: int) -> None:
        for index in range(first, first + 6):
            engine.submit(request(f"r{index}", max_tokens=20, seed=index), results[index])

    threads = [threading.Thread(target=submit, args=(first,)) for first in (0, 6, 12, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {result.wait() for result in results} == {"length"}
    assert {len(result.token_ids) for result in results} == {20}
    assert all(result.last.num_output_tokens == 20 for result in results)


def test_an_aborted_request_ends_once_and_its_id_is_free_again(engine):
    first, second = Waiting(), Waiting()
    engine.submit(request("a", max_tokens=90_000), first)
    assert not engine.abort("a", print)  # who submitted none
    assert engine.abort("a", first)
    assert first.wait() == "abort"
    assert not engine.abort("a")
    engine.submit(request("a", max_tokens=1), second)
    assert second.wait() == "length"


def test_the_id_of_an_aborted_request_is_free_before_the_engine_has_let_it_go(target):
    engine = Engine(target, NoDrafter(), SilentTransport(), config())
    aborted, again, last = Waiting(), Waiting(), Waiting()
    engine.submit(request("a", max_tokens=50), aborted)
    assert engine.abort("a")
    engine.submit(request("a", max_tokens=3, seed=1), again)
    with pytest.raises(RequestError, match="'a' is in use"):  # by the second one
        engine.submit(request("a"), Waiting())
    engine.start()
    assert (aborted.wait(), again.wait()) == ("abort", "length")
    engine.submit(request("a", max_tokens=3, seed=1), last)
    assert last.wait() == "length"
    assert last.token_ids == again.token_ids
    engine.stop()


def test_requests_aborted_just_before_the_stop_end_too(target):
    engine = Engine(target, NoDrafter(), SilentTransport(), config())
    results = [Waiting() for _ in range(2)]
    for result in results:
        engine.submit(request("a", max_tokens=50), result)
        engine.abort("a")
    engine.stop()
    assert [result.finish_reason for result in results] == ["abort", "abort"]


def test_a_duplicate_id_is_refused_by_name(engine):
    engine.submit(request("twice", max_tokens=90_000), Waiting())
    with pytest.raises(RequestError, match="'twice' is in use"):
        engine.submit(request("twice"), Waiting())


def test_a_prompt_is_looked_at_without_holding_the_engine_up(engine, monkeypatch):
    accept_all = engine._admission.accept_all

    def accept(*arguments):
        looking = threading.Thread(target=engine.stats, daemon=True)  # waits as a step would
        looking.start()
        looking.join(30)
        assert not looking.is_alive()
        return accept_all(*arguments)

    monkeypatch.setattr(engine._admission, "accept_all", accept)
    result = Waiting()
    engine.submit(request("r", max_tokens=1), result)
    assert result.wait() == "length"


def test_stop_ends_every_request(target):
    engine = Engine(target, NoDrafter(), SilentTransport(), config(num_kv_blocks=30_000))
    results = [Waiting() for _ in range(8)]
    for index, result in enumerate(results):
        engine.submit(request(f"r{index}", max_tokens=50_000), result)
    engine.start()
    engine.stop()
    engine.stop()
    assert {result.finish_reason for result in results} == {"abort"}
    with pytest.raises(EngineStoppedError):
        engine.submit(request("late"), Waiting())
    assert engine.stats().num_used_tokens == 0


def test_stop_without_start_ends_every_request(target):
    engine = Engine(target, NoDrafter(), SilentTransport(), config())
    result = Waiting()
    engine.submit(request("r", max_tokens=5), result)
    engine.stop()
    assert result.finish_reason == "abort"


def test_a_sink_that_raises_loses_its_request_alone(engine):
    def broken(delta) -> None:
        raise RuntimeError("closed")

    healthy = Waiting()
    engine.submit(request("broken", max_tokens=50), broken)
    engine.submit(request("healthy", max_tokens=50), healthy)
    assert healthy.wait() == "length"
    assert not engine.abort("broken")
    assert engine.stats().num_failed_sinks == 2  # the delta and the end


def test_a_fault_of_the_loop_itself_ends_every_request(target):
    class Unforgiving(NgramDrafter):
        def release(self, slot_id):
            raise RuntimeError("cannot forget")

    engine = Engine(target, Unforgiving(3), SilentTransport(), config(num_kv_blocks=30_000))
    results = [Waiting() for _ in range(6)]
    for index, result in enumerate(results):
        engine.submit(request(f"r{index}", max_tokens=4 + index), result)
    has_failed = threading.Event()
    engine.start(on_failure=has_failed.set)
    assert {result.wait() for result in results} <= {"length", "error"}
    assert results[-1].last.error == "the engine failed"
    assert has_failed.wait(30)
    engine.stop()
    assert not engine.is_running
    with pytest.raises(EngineStoppedError):
        engine.submit(request("late"), Waiting())


def test_requests_for_which_no_step_can_be_formed_are_told_one_by_one(target, monkeypatch):
    driver = Driver(target, NoDrafter(), SilentTransport(), config())
    monkeypatch.setattr(driver.loop._former, "form", _raise)
    results = [driver.submit([1, 2], max_tokens=5) for _ in range(3)]
    driver.run(max_steps=len(results) + 1)
    errors = {result.last.error for result in results}
    assert errors == {"step failed: RuntimeError: out of order"}


def test_a_request_that_cannot_be_admitted_is_told_and_no_room_is_lost(target, monkeypatch):
    driver = Driver(target, NoDrafter(), SilentTransport(), config())
    with monkeypatch.context() as patch:
        patch.setattr(driver.loop._columns, "enter", _raise)
        refused = driver.submit([1, 2], max_tokens=5)
        driver.run(max_steps=5)
    assert refused.finish_reason == "error"
    stats = driver.loop.stats()
    assert (stats.num_used_tokens, stats.num_running_requests) == (0, 0)
    served = driver.submit([1, 2], max_tokens=5)
    driver.run(max_steps=50)
    assert served.finish_reason == "length"


def _raise(*_):
    raise RuntimeError("out of order")


def test_requests_waiting_for_the_engine_are_counted(target):
    engine = Engine(target, NoDrafter(), SilentTransport(), config())
    engine.submit(request("r"), Waiting())
    assert engine.stats().num_waiting_requests == 1
    engine.stop()
    assert engine.stats().num_waiting_requests == 0


# ===================== Faults inside a step =====================


def test_a_failing_step_fails_its_requests_and_the_engine_goes_on():
    driver = Driver(
        TableTarget(random_table(VOCAB, 0)), NgramDrafter(3), SilentTransport(), config()
    )
    lost = [driver.submit([1, 2, 1, 2], max_tokens=9) for _ in range(4)]
    queued = driver.submit([1, 2], max_tokens=9, seed=1)
    driver.loop.step()
    driver.target.fail_next = True
    driver.run()
    assert {result.finish_reason for result in lost} == {"error"}
    assert "the device went away" in lost[0].last.error
    assert queued.finish_reason == "length"
    stats = driver.loop.stats()
    assert (stats.num_failed_steps, stats.num_failed_requests) == (1, 4)
    assert stats.num_used_tokens == 0


def test_logits_that_are_not_finite_fail_their_request_alone():
    target = TableTarget(random_table(VOCAB, 0))
    target.logits[5] = torch.nan
    driver = Driver(target, NgramDrafter(3), SilentTransport(), config())
    bad = driver.submit([5, 5], max_tokens=5)
    good = driver.submit([1, 2], max_tokens=1, temperature=0)
    driver.run()
    assert (bad.finish_reason, bad.token_ids) == ("error", [])
    assert "not finite" in bad.last.error
    assert good.finish_reason == "length"


def test_a_failing_drafter_does_not_stop_the_engine():
    class Failing(NgramDrafter):
        def draft(self, inputs):
            raise RuntimeError("no draft today")

    driver = Driver(TableTarget(random_table(VOCAB, 0)), Failing(3), SilentTransport(), config())
    result = driver.submit([1, 2], max_tokens=5)
    driver.run()
    assert result.finish_reason == "error"
    assert "no draft today" in result.last.error


# ===================== Plans =====================


def test_a_drafter_that_cannot_forget_fails_that_request_and_no_room_is_lost():
    class Unforgiving(NgramDrafter):
        num_faults = 0

        def release(self, slot_id):
            if self.num_faults == 0:
                self.num_faults = 1
                raise RuntimeError("cannot forget")
            super().release(slot_id)

    target = TableTarget(random_table(VOCAB, 0))
    driver = Driver(target, Unforgiving(3), SilentTransport(), config())
    for expected in ("error", "length"):
        result = driver.submit([1, 2], max_tokens=5, ignore_eos=True)
        driver.run(max_steps=50)
        assert result.finish_reason == expected
        stats = driver.loop.stats()
        assert (stats.num_used_tokens, stats.num_running_requests) == (0, 0)


def test_a_transport_that_never_answers_costs_no_step():
    driver = Driver(
        TableTarget(random_table(VOCAB, 0)),
        NgramDrafter(3),
        SilentTransport(FallbackReason.LATE),
        config(),
    )
    result = driver.submit([1, 2, 1, 2], max_tokens=60, temperature=0)
    driver.run()
    stats = driver.loop.stats()
    assert result.finish_reason == "length"
    assert stats.num_planned_steps == 0
    assert 0 < stats.num_fallback_steps[FallbackReason.LATE] <= stats.num_steps
    assert stats.num_verified_tokens == stats.num_drafted_tokens > 0


def test_steps_without_a_draft_need_no_plan():
    driver = Driver(TableTarget(random_table(VOCAB, 0)), NoDrafter(), SilentTransport(), config())
    driver.submit([1, 2], max_tokens=9)
    driver.run()
    assert driver.loop.stats().num_fallback_steps == {}


def test_a_plan_says_how_long_the_next_draft_is():
    from tests.executor.engine.tiny import decision

    transport = ScriptedTransport(lambda rows, request: decision(request, 12, next_draft_tokens=1))
    drafter = StochasticDrafter(random_table(VOCAB, 0)[0], 3)
    driver = Driver(TableTarget(random_table(VOCAB, 0)), drafter, transport, config())
    driver.submit([1, 2], max_tokens=30)
    driver.run()
    lengths = [int(rows.num_draft_tokens[0]) for rows in transport.drafts]
    assert lengths[0] == 3
    assert set(lengths[1:]) == {1}


def test_no_more_drafts_are_verified_than_are_present():
    transport = ScriptedTransport(lambda rows, request: 4 * 3)
    driver = Driver(TableTarget(random_table(VOCAB, 0)), NgramDrafter(3), transport, config())
    for seed in range(6):
        driver.submit([1, 2, 1, 2], max_tokens=30, seed=seed)
    driver.run()
    stats = driver.loop.stats()
    assert stats.num_failed_steps == 0
    assert stats.num_scheduled_tokens == stats.num_verified_tokens <= stats.num_drafted_tokens


def test_every_step_reports_what_it_cost_and_brought():
    transport = SilentTransport()
    driver = Driver(TableTarget(random_table(VOCAB, 0)), NgramDrafter(3), transport, config())
    for seed in range(4):
        driver.submit([1, 2, 1, 2], max_tokens=30, seed=seed)
    driver.run()
    stats = driver.loop.stats()
    assert [report.step_id for report in transport.reports] == list(range(1, stats.num_steps + 1))
    assert sum(report.num_tokens for report in transport.reports) == stats.num_rows
    assert (
        sum(report.num_verified.sum() for report in transport.reports) == stats.num_verified_tokens
    )
    assert (
        sum(report.num_accepted.sum() for report in transport.reports) == stats.num_accepted_tokens
    )
    assert all(report.verify_ms > 0 and report.draft_ms > 0 for report in transport.reports)


def test_reports_and_requests_tell_who_teaches_and_who_is_greedy():
    transport = SilentTransport()
    driver = Driver(TableTarget(random_table(VOCAB, 0)), NgramDrafter(3), transport, config())
    driver.submit([1, 2, 1, 2], max_tokens=12, seed=1, ignore_eos=True)
    driver.submit([1, 2, 1, 2], max_tokens=12, temperature=0.0, ignore_eos=True)
    driver.submit([1, 2, 1, 2], max_tokens=12, seed=2, logit_bias=((3, 1.0),), ignore_eos=True)
    driver.submit([1, 2, 1, 2], max_tokens=12, seed=3, min_tokens=6, stop_token_ids=(5,))
    driver.run()
    greedy, teaching = {}, {}
    for _, request in transport.published:
        greedy.update(zip(request.slot_id.tolist(), request.is_greedy.tolist(), strict=True))
    for report in transport.reports:
        for slot, teaches in zip(report.slot_id.tolist(), report.teaches.tolist(), strict=True):
            teaching.setdefault(slot, []).append(teaches)
    assert [greedy[slot] for slot in range(4)] == [False, True, False, False]
    assert all(teaching[0])
    assert all(teaching[1])
    assert not any(teaching[2])
    # While a stop is held off.
    assert teaching[3][0] is False


def test_confidences_carry_the_generation_they_were_made_for():
    """Short requests reuse one slot: each draft's row names another generation."""
    transport = SilentTransport()
    drafter = StochasticDrafter(random_table(VOCAB, 0)[0], 3)
    sizes = config(max_num_seqs=1)
    driver = Driver(TableTarget(random_table(VOCAB, 0)), drafter, transport, sizes)
    for seed in range(5):
        driver.submit([1, 2], max_tokens=8, seed=seed)
    driver.run()
    generations = [int(rows.generation[0]) for rows in transport.drafts]
    assert sorted(set(generations)) == [1, 2, 3, 4, 5]
    assert generations == sorted(generations)


# ===================== Features =====================


class HiddenStateDrafter(StochasticDrafter):
    """Drafts from hidden states alone: layer 0 is the one-hot of the token each row ran.

    The committed rows of all steps must spell the history but for its last token, the anchor.
    """

    feature_layers = (0,)

    def __init__(self, table, k) -> None:
        super().__init__(table, k)
        self.seen: dict[tuple[int, int], list[int]] = {}

    def first_tokens(self, inputs):
        keys = zip(inputs.slot_ids.tolist(), inputs.generations.tolist(), strict=True)
        starts = inputs.feature_start_loc.tolist()
        tokens = inputs.features[0].argmax(dim=-1).tolist()
        for row, (key, history) in enumerate(zip(keys, inputs.histories, strict=True)):
            seen = self.seen.setdefault(key, [])
            seen += tokens[starts[row] : starts[row + 1]]
            if inputs.max_draft_tokens[row]:
                assert seen == history[:-1].tolist()
            else:
                assert seen == history[: len(seen)].tolist()
        return super().first_tokens(inputs)


def test_features_of_committed_rows_reach_a_drafter_that_asks_for_them():
    table = random_table(VOCAB, 0)
    drafter = HiddenStateDrafter(table[2], 3)
    driver = Driver(TableTarget(table), drafter, SilentTransport(), config(num_kv_blocks=16))
    rng = torch.Generator().manual_seed(0)
    for seed in range(8):
        prompt = torch.randint(0, VOCAB, (25,), generator=rng).tolist()
        driver.submit(prompt, max_tokens=20, seed=seed)
    driver.run()
    stats = driver.loop.stats()
    assert stats.num_failed_requests == 0
    assert 0 < stats.num_accepted_tokens < stats.num_verified_tokens
    assert stats.num_preemptions > 0
    assert len(drafter.seen) > 8  # preempted requests are seen again from the start


# ===================== Bad input =====================


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ((), {}, ["empty", "1 token or more"]),
        ((1,) * 256, {}, ["256 tokens", "at most 255"]),
        ((1, VOCAB), {}, [f"token id {VOCAB}", f"0 to {VOCAB - 1}"]),
        ((-1, 1), {}, ["token id -1"]),
        ((1,) * 200, {}, ["201 tokens", "at most 161", "KV cache"]),
        ((1,), {"max_tokens": 0}, ["max_tokens is 0", "1 or more"]),
        ((1,), {"temperature": -1.0}, ["temperature is -1.0"]),
        ((1,), {"temperature": 1e300}, ["temperature is 1e+300", "up to 3.4e+38"]),
        ((1,), {"top_p": 0.0}, ["top_p is 0.0"]),
        ((1,), {"top_k": 1 << 70}, [f"top_k is {1 << 70}", f"to {(1 << 32) - 1}"]),
        ((1,), {"min_tokens": 1 << 70}, [f"min_tokens is {1 << 70}", f"0 to {(1 << 32) - 1}"]),
        ((1,), {"stop": ("x",)}, ["without a tokenizer"]),
    ],
)
def test_requests_that_cannot_be_served_are_refused_by_name(prompt, sampling, words):
    engine = Engine(
        TableTarget(random_table(VOCAB, 0)),
        NoDrafter(),
        SilentTransport(),
        config(num_kv_blocks=40),
    )
    with pytest.raises(RequestError) as error:
        engine.submit(request("r", prompt, **sampling), Result())
    assert all(word in str(error.value) for word in words)


def test_an_output_without_limit_ends_where_the_cache_does():
    driver = Driver(
        TableTarget(random_table(VOCAB, 0)),
        NgramDrafter(3),
        SilentTransport(),
        config(num_kv_blocks=5),
    )
    result = driver.submit([1] * 10, ignore_eos=True)
    driver.run()
    assert (len(result.token_ids), result.finish_reason) == (11, "length")


def test_the_largest_request_that_fits_is_served():
    driver = Driver(
        TableTarget(random_table(VOCAB, 0)),
        NgramDrafter(3),
        SilentTransport(),
        config(num_kv_blocks=5),
    )
    result = driver.submit([1] * 10, max_tokens=11, ignore_eos=True)
    driver.run()
    assert len(result.token_ids) == 11


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_kv_blocks": 0}, "num_kv_blocks is 0; accepted: 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens is 3; accepted: 4"),
        ({"max_draft_tokens": -1}, "max_draft_tokens is -1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_context_tokens": 1}, "max_context_tokens is 1"),
    ],
)
def test_sizes_out_of_range_are_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        config(**changes)


def test_defaults_are_valid():
    assert EngineConfig(num_kv_blocks=1).fallback.kind == "hold"
