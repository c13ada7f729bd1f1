"""What a peer reads when a call fails, whatever it sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from specsched_protocol.grpc_status import StatusInterceptor
from specsched_protocol.v1 import scheduler_pb2 as pb

SERVICE = "test.Service"
GRPC_SOFT_LIMIT = 8192
"""Bytes of trailing metadata from which on gRPC refuses some calls, by chance."""


class RefusedError(Exception):
    """What the handlers raise."""


async def _refuse(request: bytes, context: Any) -> bytes:
    raise RefusedError(request.decode())


async def _ask(request: pb.GetStatusRequest, context: Any) -> pb.GetStatusRequest:
    return request


async def _watch(request: pb.GetStatusRequest, context: Any) -> AsyncIterator[pb.GetStatusRequest]:
    yield request


async def _echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    statuses = StatusInterceptor(
        (SERVICE,),
        {RefusedError: grpc.StatusCode.INVALID_ARGUMENT},
        log_owner="test",
        logs_refusals=True,
    )
    server = grpc.aio.server(interceptors=[statuses])
    methods = {
        "Refuse": grpc.unary_unary_rpc_method_handler(_refuse),
        "Ask": grpc.unary_unary_rpc_method_handler(
            _ask, pb.GetStatusRequest.FromString, pb.GetStatusRequest.SerializeToString
        ),
        "Watch": grpc.unary_stream_rpc_method_handler(
            _watch, pb.GetStatusRequest.FromString, pb.GetStatusRequest.SerializeToString
        ),
        "Echo": grpc.stream_stream_rpc_method_handler(
            _echo, pb.AttachRequest.FromString, pb.AttachRequest.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.mark.parametrize("letter", ["x", "%", "\n", "√", "🙂"])
async def test_a_refusal_is_read_however_long_it_is(channel: grpc.aio.Channel, letter: str) -> None:
    call = channel.unary_unary(f"/{SERVICE}/Refuse")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(f"begin {letter * 100_000} end".encode())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("begin ")
    assert caught.value.details().endswith(" end")
    assert "(100010 letters)" in caught.value.details()
    assert 4000 < len(quote(caught.value.details(), safe="")) < GRPC_SOFT_LIMIT


async def test_a_request_that_is_no_message_is_the_peers_fault(channel: grpc.aio.Channel) -> None:
    garbage = b"\xff\xff\xff\x07garbage"
    ask, watch = channel.unary_unary(f"/{SERVICE}/Ask"), channel.unary_stream(f"/{SERVICE}/Watch")
    assert await ask(b"", timeout=30) == b""
    assert [each async for each in watch(b"", timeout=30)] == [b""]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(garbage, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "GetStatusRequest" in caught.value.details()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [each async for each in watch(garbage, timeout=30)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_that_is_none_is_the_peers_fault(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(f"/{SERVICE}/Echo")(iter([b"\xff\xff\xff\x07garbage"]), timeout=30)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "AttachRequest" in caught.value.details()
