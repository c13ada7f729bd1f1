"""The gateway in a child process, over an engine in this one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.gateway import GatewayError

from tests.executor.front_end.site import Site
from tests.executor.gateway.fakes import FakeEngine, eventually

pytestmark = pytest.mark.timeout(180)


class Started(Site):
    """One front end."""

    def __init__(self, engine: FakeEngine, **gateway: Any) -> None:
        super().__init__(engine, **gateway)
        self.process = self.one()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def started(engine: FakeEngine) -> AsyncIterator[Started]:
    front_end = Started(engine)
    await front_end.process.start()
    yield front_end
    await front_end.process.stop(grace_s=0)


@pytest.fixture
async def stub(started: Started) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{started.process.port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        yield vllm_engine_pb2_grpc.VllmEngineStub(channel)


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id="a", text="hello world", stream=True, **fields)


async def test_clients_are_served_and_metered(
    engine: FakeEngine, started: Started, stub: Any
) -> None:
    call = stub.Generate(request())
    assert (await engine.received("a")).prompt_token_ids == (3, 4)
    engine.emit("a", [5], num_output_tokens=1)
    assert list((await call.read()).chunk.token_ids) == [5]
    engine.emit("a", [6], num_output_tokens=2, finish_reason="length")
    assert list((await call.read()).chunk.token_ids) == [6]
    assert list((await call.read()).complete.output_ids) == [5, 6]
    assert (await stub.GetLoads(pb.GetLoadsRequest())).loads[0].num_running_reqs == 3
    await eventually(lambda: started.meter.num_finished["length"] == 1)
    assert not started.has_failed.is_set()


async def test_a_front_end_that_stands_still_holds_no_engine_up(
    engine: FakeEngine, started: Started, stub: Any
) -> None:
    call = stub.Generate(request())
    await engine.received("a")
    os.kill(started.process.pid, signal.SIGSTOP)
    try:
        for count in range(1, 20_001):
            engine.emit("a", [5], num_output_tokens=count)
    finally:
        os.kill(started.process.pid, signal.SIGCONT)
    engine.emit("a", [], num_output_tokens=20_000, finish_reason="stop")
    replies = [reply async for reply in call]
    assert len(replies[-1].complete.output_ids) == 20_000
    assert sum(len(reply.chunk.token_ids) for reply in replies[:-1]) == 20_000


async def test_the_end_of_the_front_end_is_noticed(started: Started) -> None:
    os.kill(started.process.pid, signal.SIGKILL)
    await asyncio.wait_for(started.has_failed.wait(), 60)


async def test_a_front_end_ends_with_its_engine(started: Started) -> None:
    connection = socket.socket(fileno=os.dup(started.process._connection.fileno()))
    with connection:
        connection.shutdown(socket.SHUT_RDWR)  # as the kernel does where the process is gone
    assert await asyncio.to_thread(started.process._child.wait, 60) == 1


async def test_a_port_that_is_taken_is_told(engine: FakeEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        front_end = Started(engine, port=taken.getsockname()[1])
        with pytest.raises(GatewayError, match="address already in use"):
            await front_end.process.start()
    assert await asyncio.to_thread(front_end.process._child.wait, 60) == 0
    assert not front_end.has_failed.is_set()
