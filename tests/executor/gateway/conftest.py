"""A gateway over a scripted engine, and a channel to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from smg_grpc_proto import vllm_engine_pb2_grpc
from specsched_executor.gateway import Gateway

from tests.executor.gateway.fakes import FakeEngine, serving


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(params=["engine here", "engine apart"])
async def gateway(engine: FakeEngine, request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    """With the engine at hand, and as a front end has it: at the other end of a connection."""
    async with serving(engine, is_apart=request.param == "engine apart") as running:
        yield running


@pytest.fixture
async def channel(gateway: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> vllm_engine_pb2_grpc.VllmEngineStub:
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)
