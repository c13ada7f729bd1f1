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
from specsched_executor.front_end import FrontEndProcess
from specsched_executor.gateway import GatewayError

from tests.executor.front_end.site import Site, started
from tests.executor.gateway.fakes import FakeEngine, eventually

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def front_end(site: Site) -> AsyncIterator[FrontEndProcess]:
    async with started(site.one()) as process:
        yield process


@pytest.fixture
async def stub(front_end: FrontEndProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{front_end.port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        yield vllm_engine_pb2_grpc.VllmEngineStub(channel)


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id="a", text="hello world", stream=True, **fields)


async def test_clients_are_served_and_metered(engine: FakeEngine, site: Site, stub: Any) -> None:
    call = stub.Generate(request())
    assert (await engine.received("a")).prompt_token_ids == (3, 4)
    engine.emit("a", [5], num_output_tokens=1)
    assert list((await call.read()).chunk.token_ids) == [5]
    engine.emit("a", [6], num_output_tokens=2, finish_reason="length")
    assert list((await call.read()).chunk.token_ids) == [6]
    assert list((await call.read()).complete.output_ids) == [5, 6]
    assert (await stub.GetLoads(pb.GetLoadsRequest())).loads[0].num_running_reqs == 3
    await eventually(lambda: site.meter.num_finished["length"] == 1)
    assert not site.has_failed.is_set()


async def test_requests_that_their_clients_leave_are_metered(
    engine: FakeEngine, site: Site, stub: Any
) -> None:
    call = stub.Generate(request())
    await engine.received("a")
    call.cancel()
    await eventually(lambda: site.meter.num_finished["abort"] == 1)


async def test_an_engine_that_stopped_is_not_there_for_now(engine: FakeEngine, stub: Any) -> None:
    engine.has_stopped = True
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request()).read()
    status = refused.value.code(), refused.value.details()
    assert status == (grpc.StatusCode.UNAVAILABLE, "the engine has stopped")


async def test_a_front_end_that_stands_still_holds_no_engine_up(
    engine: FakeEngine, front_end: FrontEndProcess, stub: Any
) -> None:
    call = stub.Generate(request())
    await engine.received("a")
    os.kill(front_end.pid, signal.SIGSTOP)
    try:
        for count in range(1, 20_001):
            engine.emit("a", [5], num_output_tokens=count)
    finally:
        os.kill(front_end.pid, signal.SIGCONT)
    engine.emit("a", [], num_output_tokens=20_000, finish_reason="stop")
    replies = [reply async for reply in call]
    assert len(replies[-1].complete.output_ids) == 20_000
    assert sum(len(reply.chunk.token_ids) for reply in replies[:-1]) == 20_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_when_the_engine_says_so_and_not_with_its_process_group(
    site: Site, number: signal.Signals
) -> None:
    process = site.one()
    os.kill(process.pid, number)  # while Python still begins
    async with started(process):
        os.kill(process.pid, number)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            assert (await stub.GetLoads(pb.GetLoadsRequest(), wait_for_ready=True)).loads
    assert not site.has_failed.is_set()


async def test_the_end_of_the_front_end_is_noticed(site: Site, front_end: FrontEndProcess) -> None:
    os.kill(front_end.pid, signal.SIGKILL)
    await asyncio.wait_for(site.has_failed.wait(), 60)


async def test_a_front_end_ends_with_its_engine(front_end: FrontEndProcess) -> None:
    _lose_engine(front_end)
    assert await asyncio.to_thread(front_end._child.wait, 60) == 1


async def test_requests_whose_engine_ends_are_told(
    engine: FakeEngine, front_end: FrontEndProcess, stub: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    call = stub.Generate(request())
    await engine.received("a")
    _lose_engine(front_end)
    with pytest.raises(grpc.aio.AioRpcError, match="the engine's process has ended"):
        await call.read()
    assert await asyncio.to_thread(front_end._child.wait, 60) == 1
    assert "Traceback" not in capfd.readouterr().err


def _lose_engine(front_end: FrontEndProcess) -> None:
    """As the kernel does where the engine's process is gone."""
    with socket.socket(fileno=os.dup(front_end._channel.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)


async def test_one_that_is_stopped_as_it_starts_ends_in_good_order(site: Site) -> None:
    process = site.one()
    await process.stop(grace_s=60)
    assert process._child.returncode == 0
    assert not site.has_failed.is_set()


async def test_a_port_that_is_taken_is_told(engine: FakeEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        site = Site(engine, port=taken.getsockname()[1])
        process = site.one()
        with pytest.raises(GatewayError, match="address already in use"):
            await process.start()
        await process.stop(grace_s=60)
    assert process._child.returncode == 0
    assert not site.has_failed.is_set()
