"""Steady rounds: who sends what, what counts, and that several processes see one round."""

from __future__ import annotations

import asyncio
import itertools
import time

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
from specsched_client.bench.sender import SteadyTimes, Workload
from specsched_client.bench.steady import Alone, UserLog, run_users, shares_of, steady_round

from tests.executor.gateway.fakes import AnsweringEngine, FakeEngine, eventually, serving

NUM_USERS = 3
NUM_REQUESTS = 9
ANSWER = (3, 4, 5, 6)
TIMES = SteadyTimes(settle_s=0.1, window_s=0.5)


def work(**options) -> Workload:
    defaults = {"num_requests": 0, "seed": 100, "timeout_s": 60, "steady": TIMES}
    return Workload(((3, 4), (5,)), sampling=Sampling(max_tokens=30), **(defaults | options))


def record(index: int, end_s: float) -> RequestRecord:
    return RequestRecord(index, 0.0, end_s)


def log(
    *arrivals: tuple[float, int], ready_s=2.0, records=(), begun_s=0.5, num_requests=1
) -> UserLog:
    return UserLog(begun_s, ready_s, list(arrivals), list(records), num_requests)


class Until:
    """Others whose window is over once an engine was sent so many requests."""

    def __init__(self, engine: AnsweringEngine, num_requests: int) -> None:
        self.ready_s: list[float] = []
        self._engine = engine
        self._num_requests = num_requests

    def tell_ready(self, ready_s: float) -> None:
        self.ready_s.append(ready_s)

    async def wait_for_end(self) -> None:
        await eventually(lambda: self.ready_s and len(self._engine.requests) >= self._num_requests)


def test_users_and_requests_are_split_among_processes():
    shares = shares_of(5, 2)
    assert [each.first_requests for each in shares] == [(0, 2, 4), (1, 3)]
    later = [itertools.count(each.next_request, each.stride) for each in shares]
    assert [list(itertools.islice(each, 3)) for each in later] == [[5, 7, 9], [6, 8, 10]]
    few = shares_of(2, 8)
    assert [(each.first_requests, each.stride) for each in few] == [((0,), 2), ((1,), 2)]


async def test_requests_go_out_in_order_and_the_first_ones_have_different_lengths():
    engine = AnsweringEngine(lambda _: ANSWER)
    (users,) = shares_of(NUM_USERS, 1)
    others = Until(engine, NUM_REQUESTS)
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        seen = await run_users(client, users, work(first_index=20), others)
    sent = sorted(engine.requests.values(), key=lambda each: each.sampling.seed)
    seeds = [each.sampling.seed for each in sent]
    # What a user took last may be cancelled before it goes out.
    num_sure = seen.num_requests - NUM_USERS
    assert len(sent) >= num_sure > 0
    assert seeds[:num_sure] == list(range(120, 120 + num_sure))
    assert [each.sampling.max_tokens for each in sent[:5]] == [30, 20, 10, 30, 30]
    assert others.ready_s == [seen.ready_s]
    assert seen.begun_s < seen.ready_s
    assert sum(n for _, n in seen.arrivals) >= len(ANSWER) * len(seen.records) > 0


async def test_the_window_of_one_process_begins_when_it_is_ready_and_takes_its_time():
    alone = Alone(TIMES)
    end = asyncio.create_task(alone.wait_for_end())
    await asyncio.sleep(0)
    assert not end.done()
    ready_s = time.monotonic()
    alone.tell_ready(ready_s)
    await end
    assert time.monotonic() >= ready_s + TIMES.settle_s + TIMES.window_s


async def test_a_request_that_fails_ends_the_round():
    engine = FakeEngine()
    engine.refusal = "no room"
    (users,) = shares_of(NUM_USERS, 1)
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        with pytest.raises(ServerError, match=r"request [0-2] of the round failed: .*no room"):
            await run_users(client, users, work(), Alone(TIMES))


async def test_a_user_whose_first_answer_is_empty_is_waited_for_no_longer():
    engine = AnsweringEngine(lambda _: ())
    (users,) = shares_of(NUM_USERS, 1)
    others = Until(engine, NUM_REQUESTS)
    async with serving(engine) as gateway, AsyncClient(f"127.0.0.1:{gateway.port}") as client:
        seen = await run_users(client, users, work(), others)
    assert (others.ready_s, list(seen.arrivals)) == ([seen.ready_s], [])


def test_what_counts_is_a_window_of_all_users_of_all_processes():
    ran = steady_round(
        [
            log((1.0, 7), (3.5, 3), (4.0, 5), (6.5, 9), records=[record(1, 6.5)], num_requests=7),
            log(
                (3.9, 1),
                (4.0, 2),
                (6.0, 4),
                ready_s=3.0,
                begun_s=0.4,
                records=[record(2, 3.5), record(0, 6.0)],
                num_requests=8,
            ),
        ],
        SteadyTimes(settle_s=0.75, window_s=2.5),
    )
    window = ran.window
    assert (window.begun_s, window.start_s, window.end_s) == (0.4, 3.75, 6.25)
    assert (window.num_output_tokens, window.num_requests) == (5 + 1 + 2 + 4, 8)
    assert [each.index for each in ran.records] == [0]


def test_a_window_without_tokens_is_refused():
    times = SteadyTimes(settle_s=0.0, window_s=2.5)
    with pytest.raises(InvalidRequestError, match=r"within 2.5 s; accepted: a longer --round-sec"):
        steady_round([log((1.0, 1), (5.0, 1))], times)


@pytest.mark.timeout(300)
async def test_processes_play_one_round_after_the_other_together():
    engine = AnsweringEngine(lambda _: ANSWER)
    async with (
        serving(engine) as gateway,
        ClientProcesses.open(f"127.0.0.1:{gateway.port}", 2) as processes,
    ):
        for repeat in range(2):
            logs = await processes.run(NUM_USERS, work(first_index=repeat * 1_000_000), TIMES)
            assert len(logs) == 2
            end_s = TIMES.end_s(max(each.ready_s for each in logs))
            assert time.monotonic() >= end_s
            ended = [record.index for each in logs for record in each.records]
            assert ended
            assert len(set(ended)) == len(ended)
    seeds = [each.sampling.seed for each in engine.requests.values()]
    assert len(seeds) == len(set(seeds)) > 2 * NUM_USERS


@pytest.mark.timeout(300)
async def test_an_error_of_a_process_is_that_of_the_round():
    async with serving(FakeEngine()) as gateway:
        target = f"127.0.0.1:{gateway.port}"
    async with ClientProcesses.open(target, 2) as processes:
        with pytest.raises(ConnectionFailedError):
            await processes.run(NUM_USERS, work(), TIMES)
