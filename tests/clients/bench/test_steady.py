"""Steady rounds: who sends what, what counts, and that several processes see one round."""

from __future__ import annotations

import pytest
from specsched_client import (
    AsyncClient,
    ConnectionFailedError,
    InvalidRequestError,
    Sampling,
    ServerError,
)
from specsched_client.bench.processes import ClientProcesses
from specsched_client.bench.records import RequestRecord
from specsched_client.bench.sender import Workload
from specsched_client.bench.steady import Nobody, UserLog, run_users, shares_of, steady_round

from tests.executor.gateway.fakes import AnsweringEngine, FakeEngine, serving

NUM_USERS = 3
NUM_REQUESTS = 9
ANSWER = (3, 4, 5, 6)


def work(**options) -> Workload:
    defaults = {"num_requests": NUM_REQUESTS, "seed": 100, "timeout_s": 60, "is_steady": True}
    return Workload(((3, 4), (5,)), sampling=Sampling(max_tokens=30), **(defaults | options))


def record(index: int, end_s: float, **fields) -> RequestRecord:
    return RequestRecord(index, 0.0, end_s, **fields)


def log(
    *arrivals: tuple[float, int], ready_s=2.0, exhausted_s=None, records=(), begun_s=0.5
) -> UserLog:
    return UserLog(begun_s, list(records), list(arrivals), ready_s, exhausted_s)


def test_users_and_requests_are_split_among_processes():
    shares = shares_of(5, 12, 2)
    assert [each.first_requests for each in shares] == [(0, 2, 4), (1, 3)]
    assert [each.requests for each in shares] == [(5, 7, 9, 11), (6, 8, 10)]
    assert len(shares_of(2, 12, 8)) == 2


async def test_requests_go_out_in_order_and_the_first_ones_have_different_lengths():
    engine = AnsweringEngine(lambda _: ANSWER)
    (users,) = shares_of(NUM_USERS, NUM_REQUESTS, 1)
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        seen = await run_users(client, users, work(first_index=20), Nobody())
    sent = sorted(engine.requests.values(), key=lambda each: each.sampling.seed)
    # What was taken last may be cancelled before it goes out: somebody found no request left.
    assert NUM_REQUESTS - NUM_USERS < len(sent) <= NUM_REQUESTS
    assert [each.sampling.seed for each in sent] == list(range(120, 120 + len(sent)))
    assert [each.sampling.max_tokens for each in sent[:5]] == [30, 20, 10, 30, 30]
    assert seen.exhausted_s is not None
    assert sum(n for _, n in seen.arrivals) >= len(ANSWER) * len(seen.records) > 0


def test_what_counts_is_when_all_users_of_all_processes_are_busy():
    ran = steady_round(
        [
            log((1.0, 7), (2.5, 3), (4.0, 5), (6.5, 9), exhausted_s=7.0, records=[record(1, 6.5)]),
            log(
                (2.9, 1),
                (3.0, 2),
                (6.0, 4),
                ready_s=3.0,
                exhausted_s=6.0,
                records=[record(2, 2.5), record(0, 6.0)],
            ),
        ]
    )
    assert (ran.window.begun_s, ran.window.start_s, ran.window.end_s) == (0.5, 3.0, 6.0)
    assert ran.window.num_output_tokens == 5 + 4
    assert [each.index for each in ran.records] == [0]


def test_a_round_that_is_too_short_and_one_that_failed_are_refused():
    with pytest.raises(InvalidRequestError, match="accepted: a longer --round-seconds"):
        steady_round([log((1.0, 1), ready_s=None, exhausted_s=2.0)])
    with pytest.raises(InvalidRequestError, match="accepted: a longer --round-seconds"):
        steady_round([log((1.0, 1), ready_s=3.0, exhausted_s=2.0)])
    failed = [record(0, 3.0, error="no room")]
    with pytest.raises(ServerError, match="1 requests failed, the first with: no room"):
        steady_round([log((1.0, 1), exhausted_s=3.0, records=failed)])


@pytest.mark.timeout(300)
async def test_processes_play_one_round_after_the_other_together():
    engine = AnsweringEngine(lambda _: ANSWER)
    async with (
        serving(engine) as gateway,
        ClientProcesses.open(f"127.0.0.1:{gateway.port}", 2) as processes,
    ):
        for repeat in range(2):
            logs = await processes.run(NUM_USERS, work(first_index=repeat * NUM_REQUESTS))
            assert len(logs) == 2
            assert any(each.exhausted_s is not None for each in logs)
            ended = [record.index for each in logs for record in each.records]
            assert ended
            assert len(set(ended)) == len(ended)
    seeds = [each.sampling.seed for each in engine.requests.values()]
    assert len(seeds) == len(set(seeds)) > NUM_REQUESTS


@pytest.mark.timeout(300)
async def test_an_error_of_a_process_is_that_of_the_round():
    async with serving(FakeEngine()) as gateway:
        target = f"127.0.0.1:{gateway.port}"
    async with ClientProcesses.open(target, 2) as processes:
        with pytest.raises(ConnectionFailedError):
            await processes.run(NUM_USERS, work())
