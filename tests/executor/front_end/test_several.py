"""Two front ends on one port, over an engine in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.core import DeltaSink, DuplicateIdError, GenerationRequest
from specsched_executor.front_end import FrontEnds
from specsched_executor.gateway import GatewayConfig, GatewayError, check_port
from specsched_protocol.tcp import TcpAddress

from tests.executor.front_end.site import Site, started
from tests.executor.gateway.fakes import FakeEngine, eventually
from tests.integration.test_smg import free_port
from tests.nginx import nginx
from tests.repository import ROOT

pytestmark = pytest.mark.timeout(180)

_MAX_CONNECTIONS = 64


class OneOfAnIdEngine(FakeEngine):
    """Refuses a second request of an id, like the engine; an abort frees it."""

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        if request.request_id in self.requests:
            raise DuplicateIdError("request id is in use")
        super().submit(request, sink)

    def abort(self, request_id: str, sink: DeltaSink | None = None) -> None:
        if request_id in self.requests and sink in {None, self.sinks[request_id]}:
            del self.requests[request_id]
            super().abort(request_id, sink)


@pytest.fixture
def engine() -> FakeEngine:
    return OneOfAnIdEngine()


@pytest.fixture
async def front_ends(site: Site) -> AsyncIterator[FrontEnds]:
    async with started(site.several(2)) as both:
        yield both


@pytest.fixture
async def stubs(front_ends: FrontEnds) -> AsyncIterator[list[Any]]:
    """A stub for each front end."""
    by_pid: dict[int, Any] = {}
    channels = []
    for _ in range(_MAX_CONNECTIONS):
        inodes = {each.pid: _sockets(each.pid) for each in front_ends.processes}
        channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{front_ends.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        channels.append(channel)
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        await stub.HealthCheck(pb.HealthCheckRequest(), wait_for_ready=True, timeout=60)
        taken_by = [pid for pid, before in inodes.items() if _sockets(pid) - before]
        by_pid[taken_by[0]] = stub
        if len(by_pid) == len(front_ends.processes):
            break
    yield list(by_pid.values())
    for channel in channels:
        await channel.close()


def _sockets(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    names = (os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder))
    return {name for name in names if name.startswith("socket:")}


async def _closed(stub: Any) -> None:
    async with asyncio.timeout(60):
        while (await stub.HealthCheck(pb.HealthCheckRequest())).healthy:
            await asyncio.sleep(0.01)


def request(request_id: str = "a") -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id=request_id, text="hello world", stream=True)


async def test_both_serve_and_are_metered_together(
    engine: FakeEngine, site: Site, stubs: list[Any]
) -> None:
    assert len(stubs) == 2
    calls = {name: stub.Generate(request(name)) for name, stub in zip("ab", stubs, strict=True)}
    for name in calls:
        await engine.received(name)
    for name, token_id in (("a", 5), ("b", 6)):
        engine.emit(name, [token_id], num_output_tokens=1, finish_reason="length")
    for name, token_id in (("a", 5), ("b", 6)):
        replies = [reply async for reply in calls[name]]
        assert list(replies[-1].complete.output_ids) == [token_id]
    await eventually(lambda: site.meter.total().num_finished["length"] == 2)
    total = site.meter.total()
    assert sum(total.latency_s.counts) == sum(total.first_token_s.counts) == 2
    loads = [(await stub.GetLoads(pb.GetLoadsRequest())).loads[0] for stub in stubs]
    for load in loads:
        load.ClearField("gen_throughput")  # since the one that is asked was asked last
    assert loads[0] == loads[1]


async def test_either_aborts_what_came_through_the_other(
    engine: FakeEngine, stubs: list[Any]
) -> None:
    call = stubs[0].Generate(request())
    await engine.received("a")
    await stubs[1].Abort(pb.AbortRequest(request_ids=["unknown", "a"]))
    assert [reply async for reply in call][-1].complete.finish_reason == "abort"


async def test_an_id_is_refused_that_is_open_at_the_other(
    engine: FakeEngine, stubs: list[Any]
) -> None:
    call = stubs[0].Generate(request())
    await engine.received("a")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stubs[1].Generate(request()).read()
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    engine.emit("a", [5], num_output_tokens=1, finish_reason="length")
    assert list([reply async for reply in call][-1].complete.output_ids) == [5]
    assert engine.aborted == []


async def test_the_end_of_one_is_noticed(site: Site, front_ends: FrontEnds) -> None:
    os.kill(front_ends.processes[1].pid, signal.SIGKILL)
    await asyncio.wait_for(site.has_failed.wait(), 60)


async def test_a_stop_drains_both(
    engine: FakeEngine, site: Site, front_ends: FrontEnds, stubs: list[Any]
) -> None:
    calls = [stub.Generate(request(name)) for name, stub in zip("ab", stubs, strict=True)]
    for name in "ab":
        await engine.received(name)
    stopping = asyncio.ensure_future(front_ends.stop(grace_s=60))
    for name, stub in zip("ab", stubs, strict=True):
        await _closed(stub)
        engine.emit(name, [5], num_output_tokens=1, finish_reason="length")
    for call in calls:
        assert list([reply async for reply in call][-1].complete.output_ids) == [5]
    await stopping
    assert engine.aborted == []
    assert [each._child.returncode for each in front_ends.processes] == [0, 0]
    assert not site.has_failed.is_set()


async def test_a_port_that_is_taken_is_told(engine: FakeEngine) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GatewayError, match="address already in use"):
            Site(engine, port=taken.getsockname()[1]).several(2)


async def test_no_other_executor_gets_the_ports(engine: FakeEngine, front_ends: FrontEnds) -> None:
    taken = {"port": front_ends.port}
    for config in (taken, {"port": 0, "listen": TcpAddress("127.0.0.1", taken["port"])}):
        with pytest.raises(GatewayError, match="ddress already in use"):
            Site(engine, **config).several(2)
    with pytest.raises(GatewayError, match="address already in use"):
        check_port(GatewayConfig(**taken))


async def test_requests_of_one_connection_reach_both_through_nginx(
    engine: FakeEngine, front_ends: FrontEnds, tmp_path: Path
) -> None:
    """By itself a connection stays with one; see deploy/nginx/front-ends.conf."""
    port = free_port()
    replaced = {
        "/tmp/": f"{tmp_path}/",
        "50051": str(front_ends.port),
        "127.0.0.1:50050": f"127.0.0.1:{port}",
    }
    text = (ROOT / "deploy" / "nginx" / "front-ends.conf").read_text()
    with nginx(tmp_path, text, replaced, port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            generate = vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate
            calls, takers = {}, set()
            for index in range(_MAX_CONNECTIONS):
                calls[str(index)] = generate(request(str(index)))
                await engine.received(str(index))
                takers.add(engine.sinks[str(index)].taker)  # type: ignore[attr-defined]
                if len(takers) == len(front_ends.processes):
                    break
            assert len(takers) == 2
            for name, call in calls.items():
                engine.emit(name, [5], num_output_tokens=1, finish_reason="length")
                assert list([reply async for reply in call][-1].complete.output_ids) == [5]
