"""Which readers the hub wakes when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from specsched_executor.core import TokenDelta
from specsched_executor.gateway import streams
from specsched_executor.gateway.streams import StreamHub

NUM_STREAMS = 50
MAX_SENDING = 16
UNBOUNDED = 10_000_000


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MAX_SENDING", MAX_SENDING)


class Readers:
    """A task for each stream, which reads once it may. read: tokens by stream."""

    def __init__(self, hub: StreamHub, num_streams: int) -> None:
        self.streams = [hub.open() for _ in range(num_streams)]
        self.read: list[list[int]] = [[] for _ in self.streams]
        self.may_send = [asyncio.Event() for _ in self.streams]
        self.tasks = [asyncio.create_task(self._run(index)) for index in range(num_streams)]

    def push(self, token: int, finish_reason: str | None = None) -> None:
        for stream in self.streams:
            stream.push(TokenDelta("", (token,), finish_reason))

    @property
    def num_waiting(self) -> int:
        """Readers that have taken what is not sent yet."""
        sent = zip(self.read, self.may_send, strict=True)
        return sum(bool(tokens) and not may_send.is_set() for tokens, may_send in sent)

    async def _run(self, index: int) -> None:
        async for delta in self.streams[index]:
            self.read[index] += delta.token_ids
            await self.may_send[index].wait()


@contextlib.asynccontextmanager
async def readers(num_streams: int = NUM_STREAMS, pace: int = UNBOUNDED) -> AsyncIterator[Readers]:
    them = Readers(StreamHub(pace), num_streams)
    yield them
    for task in them.tasks:
        task.cancel()
    await asyncio.gather(*them.tasks, return_exceptions=True)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_send_at_a_time_and_the_next_once_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_PATIENCE_S", 3600.0)
    async with readers() as them:
        them.push(1)
        await turns(20)
        assert them.num_waiting == MAX_SENDING
        for seen in range(MAX_SENDING, NUM_STREAMS, MAX_SENDING):
            assert sum(map(bool, them.read)) == seen
            for tokens, may_send in zip(them.read, them.may_send, strict=True):
                if tokens:
                    may_send.set()
            await turns(20)
            assert them.num_waiting <= MAX_SENDING
        assert them.read == [[1]] * NUM_STREAMS


async def test_one_that_has_sent_makes_room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PATIENCE_S", 3600.0)
    async with readers() as them:
        them.push(1)
        await turns(20)
        first = next(index for index, tokens in enumerate(them.read) if tokens)
        them.may_send[first].set()
        await turns(20)
        assert them.num_waiting == MAX_SENDING
        assert sum(map(bool, them.read)) == MAX_SENDING + 1


async def test_those_whose_clients_do_not_read_are_not_waited_for() -> None:
    async with readers() as them:
        them.may_send[0].set()
        for blocked in them.streams[1:]:
            blocked.push(TokenDelta("", (0,)))
        for token in range(1, 4):
            them.streams[0].push(TokenDelta("", (token,)))
            async with asyncio.timeout(60):
                while token not in them.read[0]:
                    for blocked in them.streams[1:]:
                        blocked.push(TokenDelta("", (token,)))
                    await asyncio.sleep(0.001)
        assert them.read[0] == [1, 2, 3]
        assert them.num_waiting == NUM_STREAMS - 1


async def test_what_comes_meanwhile_is_merged_and_the_end_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_MAX_SENDING", 1)
    async with readers() as them:
        for may_send in them.may_send:
            may_send.set()
        for token in range(5):
            them.push(token)
        them.push(5, "length")
        async with asyncio.timeout(60):
            await asyncio.gather(*them.tasks)
        assert them.read == [[0, 1, 2, 3, 4, 5]] * NUM_STREAMS


async def test_a_reader_that_leaves_makes_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_PATIENCE_S", 3600.0)
    monkeypatch.setattr(streams, "_MAX_SENDING", 1)
    async with readers(2) as them:
        them.push(1)
        await turns(20)
        assert them.read == [[1], []]
        them.tasks[0].cancel()
        async with asyncio.timeout(60):
            while not them.read[1]:
                await asyncio.sleep(0.001)


async def test_the_pace_is_bounded() -> None:
    loop = asyncio.get_running_loop()
    async with readers(pace=500) as them:
        for may_send in them.may_send:
            may_send.set()
        begin = loop.time()
        them.push(1)
        async with asyncio.timeout(60):
            while not all(them.read):
                await asyncio.sleep(0.001)
        last_slice = (NUM_STREAMS - 1) // MAX_SENDING * MAX_SENDING
        assert loop.time() - begin >= last_slice / 500 - streams._TIMER_S
