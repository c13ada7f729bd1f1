"""A real engine at the other end of a connection gives what it gives at hand."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from specsched_executor.batched_sink import BatchedSink
from specsched_executor.core import GenerationRequest, SamplingParams, TokenDelta
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine import Engine
from specsched_executor.front_end.channel import Channel, _packed
from specsched_executor.front_end.messages import Ask, Deltas, NotAnswered
from specsched_executor.front_end.order_taker import sendable_stats
from specsched_executor.front_end.outbox import Outbox
from specsched_executor.front_end.remote_engine import RemoteEngine
from specsched_executor.gateway.errors import NotServingError
from specsched_executor.progress import Progress

from tests.executor.engine.tiny import SilentTransport, TableTarget, config, random_table
from tests.executor.gateway.fakes import at_a_distance

REQUESTS = [
    GenerationRequest("plain", (1, 2), SamplingParams(max_tokens=30, seed=1)),
    GenerationRequest("stopped", (1, 2), SamplingParams(seed=2, stop_token_ids=(3,))),
    GenerationRequest("outputs", (2,), SamplingParams(n=3, max_tokens=20, seed=3)),
    GenerationRequest("told", (1, 2, 3), SamplingParams(max_tokens=9, logprobs=2, seed=4)),
    GenerationRequest("prompted", (1, 2, 3), SamplingParams(max_tokens=9, prompt_logprobs=1)),
]


class Gathered:
    """The deltas of a request by output, and when all have ended."""

    def __init__(self, num_outputs: int, on_end: Callable[[], None]) -> None:
        self.deltas: dict[int, list[TokenDelta]] = {}
        self._num_left, self._on_end = num_outputs, on_end

    def __call__(self, delta: TokenDelta) -> None:
        self.deltas.setdefault(delta.index, []).append(delta)
        self._num_left -= delta.finish_reason is not None
        if not self._num_left:
            self._on_end()

    def outputs(self) -> list[tuple]:
        return [
            (
                [token for delta in deltas for token in delta.token_ids],
                [each for delta in deltas for each in delta.logprobs],
                [each for delta in deltas for each in delta.prompt_logprobs],
                deltas[-1].finish_reason,
                deltas[-1].num_output_tokens,
                sum(len(delta.token_ids) for delta in deltas),
            )
            for _, deltas in sorted(self.deltas.items())
        ]


def engine() -> Engine:
    target = TableTarget(random_table(6, 0), max_context_tokens=512)
    return Engine(target, NgramDrafter(3), SilentTransport(), config(num_kv_blocks=2_000))


def at_hand(request: GenerationRequest) -> list[tuple]:
    running, ended = engine(), threading.Event()
    gathered = Gathered(request.sampling.n, ended.set)
    running.start()
    running.submit(request, gathered)
    assert ended.wait(60)
    running.stop()
    return gathered.outputs()


async def test_outputs_are_those_at_hand() -> None:
    running = engine()
    running.start()
    with at_a_distance(running) as remote:
        ends = [asyncio.Event() for _ in REQUESTS]
        gathered = [
            Gathered(each.sampling.n, end.set) for each, end in zip(REQUESTS, ends, strict=True)
        ]
        for request, sink in zip(REQUESTS, gathered, strict=True):
            remote.submit(request, sink)
        async with asyncio.timeout(60):
            for end in ends:
                await end.wait()
    running.stop()
    for request, sink in zip(REQUESTS, gathered, strict=True):
        if request.sampling.seed is not None:
            assert sink.outputs() == await asyncio.to_thread(at_hand, request), request.request_id
        for deltas in sink.deltas.values():
            counts = [delta.num_output_tokens for delta in deltas]
            assert counts == sorted(counts)


async def test_where_the_engine_ends_all_that_waits_for_it_is_told() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    ended, deltas = asyncio.Event(), list[TokenDelta]()
    remote = RemoteEngine(theirs, on_message=lambda message: None, on_end=ended.set)
    request = REQUESTS[2]
    with theirs:
        remote.submit(request, deltas.append)
        asking = asyncio.create_task(asyncio.to_thread(remote.stats))
        while not any(isinstance(each, Ask) for each in await asyncio.to_thread(ours.receive)):
            pass
        ours.close()
        async with asyncio.timeout(60):
            await ended.wait()
            with pytest.raises(NotServingError, match="the engine's process has ended"):
                await asking
        assert [(each.finish_reason, each.request_id) for each in deltas] == [("error", "outputs")]
        remote.abort(request.request_id)
        remote.abort_elsewhere("another")
        with pytest.raises(NotServingError):
            remote.submit(request, deltas.append)
        with pytest.raises(NotServingError):
            remote.stats()
        assert len(deltas) == 1


async def test_what_the_engine_cannot_answer_is_told() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    remote = RemoteEngine(theirs, on_message=lambda message: None, on_end=lambda: None)
    with ours, theirs:
        asking = asyncio.create_task(asyncio.to_thread(remote.stats))
        (question,) = await asyncio.to_thread(ours.receive)
        ours.send(NotAnswered(question.number, "out of order"))
        with pytest.raises(RuntimeError, match="out of order"):
            await asyncio.wait_for(asking, 60)
        remote.close()


def test_what_is_asked_arrives_as_it_was_sent() -> None:
    sampling = SamplingParams(
        *(0.5, 7, 0.9, 0.1, 1.2, 0.3, 0.4, ((5, -1.5),), 2, 3, 4, 11, False, 99, 8),
        stop_token_ids=(1, 2),
        stop=("end",),
        include_stop_str_in_output=True,
        ignore_eos=True,
    )
    usual = dataclasses.asdict(SamplingParams())
    assert all(value != usual[name] for name, value in dataclasses.asdict(sampling).items())
    for each in (GenerationRequest("a", (3, 1, 2), sampling, 2.5), *REQUESTS):
        assert pickle.loads(pickle.dumps(each)) == each


def test_totals_are_sent_in_types_that_load_no_torch() -> None:
    running = engine()
    sent = pickle.dumps(sendable_stats(running))
    assert b"specsched_executor" not in sent
    running.stop()
    received = pickle.loads(sent)
    assert received.num_fallback_steps == dict(running.stats().num_fallback_steps)
    assert received.max_tokens == running.stats().max_tokens


def progress(*rows: tuple[int, int, list[int], int, int]) -> Progress:
    numbers = [[key, index, len(new), *counts] for key, index, new, *counts in rows]
    token_ids = [token for _, _, new, *_ in rows for token in new]
    columns = np.array(numbers, dtype=np.int64).reshape(-1, 5).T
    return Progress(columns, np.array(token_ids, dtype=np.int32))


class Ends:
    """The two ends of a connection; the first one's outbox."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.writer, self.reader = Channel(ours), Channel(theirs)
        self.outbox = Outbox(self.writer)
        self.outbox.start()

    def fill(self) -> bytes:
        """Something so long that what comes after it has to wait for the reader."""
        filling = bytes(1_000_000)
        self.outbox.put(filling)
        return filling


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.reader.close()
    ends.outbox.close()
    ends.writer.close()


def received(reader: Channel, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        messages += reader.receive()
    return messages


@pytest.mark.parametrize("num_steps", [1, 5, 40])
def test_what_is_not_sent_yet_merges(ends: Ends, num_steps: int) -> None:
    outbox, filling = ends.outbox, ends.fill()
    sinks = [outbox.sink(key) for key in range(3)]
    assert all(isinstance(sink, BatchedSink) for sink in sinks)
    for step in range(num_steps):
        outbox.take(
            progress(*((sink.key, 0, [step, step], 3 * step, step) for sink in reversed(sinks)))
        )
    sinks[1](TokenDelta("b", (9,), finish_reason="stop"))
    outbox.flush()
    first, packed = received(ends.reader, 2)
    assert first == filling
    deltas = Deltas.unpacked(packed)
    assert deltas.progress is not None
    tokens = [step for step in range(num_steps) for _ in range(2)]
    assert sorted((key, new, accepted) for key, _, new, _, accepted in deltas.progress.rows()) == [
        (key, tokens, num_steps - 1) for key in range(3)
    ]
    assert [(key, delta.finish_reason) for key, delta in deltas.others] == [(1, "stop")]


def test_what_there_is_room_for_is_sent_at_once(ends: Ends) -> None:
    ends.outbox.sink(4)(TokenDelta("a", (9,), finish_reason="stop"))
    assert ends.reader.receive_at_once() == []  # it goes with what comes next
    ends.outbox.take(progress((3, 0, [5], 0, 0)))
    ends.outbox.put("after")
    packed, after = ends.reader.receive_at_once()
    deltas = Deltas.unpacked(packed)
    assert list(deltas.progress.rows()) == [(3, 0, [5], 0, 0)]
    assert [key for key, _ in deltas.others] == [4]
    assert after == "after"


def test_nobody_is_told_once_the_reader_is_gone(ends: Ends) -> None:
    ends.fill()
    ends.reader.close()
    for step in range(100):
        ends.outbox.take(progress((3, 0, [step], 0, 0)))
    ends.outbox.close()
    assert not ends.outbox._steps


def test_messages_come_whole_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    messages = [list(range(size)) for size in (0, 3, 30_000, 1)]
    with ours, Channel(theirs) as reader:
        cut = b"".join(_packed(message) for message in messages)
        come: list[Any] = []
        for first in range(0, len(cut), 7_001):
            ours.sendall(cut[first : first + 7_001])
            come += reader.receive_at_once()
        assert come == messages
        assert reader.receive_at_once() == []
        ours.close()
        with pytest.raises(EOFError):
            reader.receive()
