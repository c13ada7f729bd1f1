"""Steps that overlap commit what steps one after the other do."""

from __future__ import annotations

import time

import numpy as np
import pytest
from specsched_executor.device import GraphSizes, pipelined_loop
from specsched_executor.drafters import NgramDrafter, NoDrafter

from tests.executor.device.tiny import DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.statistics import looks_like
from tests.executor.engine.test_lossless import SCHEDULES, VOCAB, transition_counts
from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    SilentTransport,
    TableTarget,
    config,
    random_table,
)

EAGER = GraphSizes()


def target(**options):
    return PaddedTarget(random_table(VOCAB, 0), **options)


def drafter_of(kind: str, sizes):
    table = random_table(VOCAB, 0)[1]
    return {
        "none": NoDrafter,
        "ngram": lambda: NgramDrafter(3),
        "device": lambda: DeviceTableDrafter(table, sizes.max_num_seqs, sizes.max_draft_tokens),
    }[kind]()


def expected_outputs(temperature: float):
    driver = Driver(TableTarget(random_table(VOCAB, 0)), NoDrafter(), SilentTransport(), config())
    results = submit_all(driver, temperature)
    driver.run()
    return [result.token_ids for result in results]


def submit_all(driver, temperature: float, num_requests: int = 12):
    return [
        driver.submit([seed % VOCAB, 1, 2], temperature=temperature, seed=seed, max_tokens=40)
        for seed in range(num_requests)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["none", "ngram", "device"])
def test_greedy_output_is_that_of_steps_one_after_the_other(schedule, kind):
    driver = DeviceDriver(target(), drafter_of(kind, config()), SCHEDULES[schedule](), config())
    results = submit_all(driver, temperature=0.0)
    driver.run()
    assert [result.token_ids for result in results] == expected_outputs(0.0)
    assert {result.finish_reason for result in results} == {"length"}
    stats = driver.loop.stats()
    assert stats.num_used_tokens == 0
    if kind != "none":
        assert stats.num_drafted_tokens > 100
        assert (stats.num_verified_tokens == 0) == (schedule == "verify none")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["none", "ngram"])
def test_seeded_output_is_that_of_steps_one_after_the_other(schedule, kind):
    driver = DeviceDriver(target(), drafter_of(kind, config()), SCHEDULES[schedule](), config())
    results = submit_all(driver, temperature=1.0)
    driver.run()
    assert [result.token_ids for result in results] == expected_outputs(1.0)


@pytest.mark.parametrize("schedule", ["verify all", "any budget", "every third plan lost"])
def test_sampled_output_has_the_targets_distribution(schedule):
    vocab = 3
    table = random_table(vocab, 3, concentration=1.5)
    sizes = config(max_num_seqs=32, num_kv_blocks=1024, max_num_batched_tokens=256)
    drafter = DeviceTableDrafter(random_table(vocab, 4, concentration=1.0)[0], 32, 3)
    driver = DeviceDriver(
        PaddedTarget(table, max_context_tokens=128),
        drafter,
        SCHEDULES[schedule](),
        sizes,
        graphs=GraphSizes(rows=(8, 32, 128), draft_requests=(8, 32), draft_lens=(3,)),
    )
    results = [driver.submit([0, 1], seed=seed, max_tokens=100) for seed in range(160)]
    driver.run()
    counts = transition_counts([result.token_ids for result in results], vocab)
    for pair in np.ndindex(vocab, vocab):
        assert looks_like(counts[pair], table[pair])
    assert driver.loop.stats().num_accepted_tokens > 1000


def test_all_drafts_that_a_step_can_verify_are_known_to_its_plan():
    """To the end of an answer: what is not in the plan request gets no budget."""
    num_steps = {}
    for name, budget_of in (("asked", lambda asked: int(asked.sum())), ("all", lambda _: 12)):
        transport = ScriptedTransport(
            lambda _, request, budget_of=budget_of: budget_of(request.num_draft_tokens)
        )
        driver = DeviceDriver(target(), drafter_of("device", config()), transport, config())
        result = driver.submit([0, 1, 2], temperature=0.0, max_tokens=60)
        driver.run()
        assert result.finish_reason == "length"
        asked = {each.step_id: each.num_draft_tokens.tolist() for _, each in transport.published}
        for report in transport.reports[2:]:
            assert report.num_verified.tolist() == asked[report.step_id]
        num_steps[name] = driver.loop.stats().num_steps
    assert num_steps["asked"] == num_steps["all"]


@pytest.mark.parametrize("max_context_tokens", [200, 43])
def test_drafts_go_on_to_the_end_of_the_output(max_context_tokens):
    """What a step in flight may commit at most says little: each of these commits one token."""
    table = random_table(VOCAB, 0)
    table[..., -1] = 0.0  # what is drafted is never accepted
    wrong = np.zeros((VOCAB, VOCAB))
    wrong[:, -1] = 1.0
    driver = DeviceDriver(
        PaddedTarget(table, max_context_tokens=max_context_tokens),
        DeviceTableDrafter(wrong, 4, 3),
        ScriptedTransport(lambda rows, request: int(request.num_draft_tokens.sum())),
        config(),
    )
    result = driver.submit([0, 1, 2], temperature=0.0, max_tokens=40)
    driver.run()
    assert len(result.token_ids) == 40
    stats = driver.loop.stats()
    assert stats.num_accepted_tokens == 0
    # All but the first decoding steps, which have no plan, and the last, which have less to output;
    # at the end of the context a launched step needs room for all that it may commit.
    num_without = 5 if max_context_tokens == 200 else 10
    assert stats.num_verified_tokens >= (40 - num_without) * 3


class WatchedTransport(ScriptedTransport):
    """Notes how long each plan may be watched for, in ns from then on."""

    def __init__(self) -> None:
        super().__init__(lambda rows, request: int(request.num_draft_tokens.sum()))
        self.watched: list[tuple[int, int]] = []

    def await_decision(self, step_id: int, until_ns: int) -> None:
        self.watched.append((step_id, until_ns - time.monotonic_ns()))


@pytest.mark.parametrize(("kind", "min_wait_ns"), [("device", 0), ("device", 10**18), ("ngram", 0)])
def test_a_plan_is_watched_for_only_while_the_device_is_busy_with_the_step_before(
    monkeypatch, kind, min_wait_ns
):
    monkeypatch.setattr(pipelined_loop, "_MIN_WAIT_NS", min_wait_ns)
    transport = WatchedTransport()
    driver = DeviceDriver(target(), drafter_of(kind, config()), transport, config())
    driver.submit([0, 1, 2], temperature=0.0, max_tokens=40)
    driver.run()
    steps = {report.step_id: report for report in transport.reports}
    longest_ms = max(report.verify_ms + report.draft_ms for report in steps.values())
    assert all(left_ns <= 0.4e6 * longest_ms for _, left_ns in transport.watched)
    # The host was in time; there is a step in flight but for the first of all.
    is_watched = kind == "device" and min_wait_ns == 0
    assert len(transport.watched) >= len(steps) - 3 if is_watched else not transport.watched


def test_more_tokens_than_there_is_room_for_may_be_the_least():
    driver = DeviceDriver(target(eos=(3,)), NoDrafter(), SilentTransport(), config())
    other = driver.submit([1, 2], max_tokens=9, ignore_eos=True)
    result = driver.submit([5, 5], min_tokens=(1 << 32) - 1, seed=1)
    driver.run()
    assert (other.finish_reason, result.finish_reason) == ("length", "length")
    assert 3 not in result.token_ids


def test_a_device_that_does_no_more_work_ends_the_loop(monkeypatch):
    driver = DeviceDriver(target(), NoDrafter(), SilentTransport(), config())
    driver.submit([1, 2], max_tokens=9)
    driver.loop.step()

    def settle():
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(driver.loop._runner, "settle", settle)
    driver.target.fail_next = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        driver.run(max_steps=5)
