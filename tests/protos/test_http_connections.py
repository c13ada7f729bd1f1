"""The connections of an HTTP listener: how many stay, for how long, and what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog
from aiohttp import web
from specsched_protocol.http.connections import Connections

TIMEOUT_S = 60.0
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b"x" * (64 << 20) if request.path == "/large" else b"hello")


@contextlib.asynccontextmanager
async def listening(**limits: Any) -> AsyncIterator[tuple[web.Server, int]]:
    """A server of `answer` and its port."""
    server = web.Server(answer)
    connections = Connections(server, "test", **({"max_connections": 4} | limits))
    loop = asyncio.get_running_loop()
    accepting = await loop.create_server(connections, "127.0.0.1", 0)
    try:
        yield server, accepting.sockets[0].getsockname()[1]
    finally:
        accepting.close()
        await server.shutdown(0.1)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            await asyncio.sleep(0.01)


Connect = Callable[[int, bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to a port and sends; closed at the end."""
    opened: list[asyncio.StreamWriter] = []

    async def connect(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write(sent)
        return reader, writer

    yield connect
    for writer in opened:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def first_line(reader: asyncio.StreamReader) -> bytes:
    """Of the response; empty where the connection is refused."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.readline()
    return b""


async def test_further_connections_are_closed_at_once_and_places_come_back(connect: Connect):
    with structlog.testing.capture_logs() as logs:
        async with listening(max_connections=3, idle_s=3600.0) as (server, port):
            stay = [await connect(port, GET) for _ in range(3)]
            for reader, _ in stay:
                assert await first_line(reader) == b"HTTP/1.1 200 OK\r\n"
            for _ in range(20):
                assert await first_line((await connect(port, GET))[0]) == b""
            assert len(server.connections) == 3
            stay[0][1].close()
            await until(lambda: len(server.connections) == 2)
            assert await first_line((await connect(port, GET))[0]) == b"HTTP/1.1 200 OK\r\n"
    assert [(each["event"], each["accepted"]) for each in logs] == [("http_connections_full", 3)]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET, GET + b"GET / HTTP/1.1\r\nHost: l"])
async def test_idle_and_half_sent_requests_are_closed(connect: Connect, sent: bytes):
    async with listening(idle_s=0.1) as (server, port):
        reader, _ = await connect(port, sent)
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()  # until the server ends it
        await until(lambda: not server.connections)


async def test_a_response_that_is_not_taken_ends_its_connection():
    async with listening(send_s=0.1) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(GET.replace(b"/", b"/large", 1))
            await until(lambda: server.requests_count == 1)
            await until(lambda: not server.connections)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nbroken\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: l\r\nX: " + b"x" * 20000 + b"\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_told_in_one_line(
    connect: Connect, caplog: pytest.LogCaptureFixture, sent: bytes
):
    with structlog.testing.capture_logs() as logs:
        async with listening() as (_, port):
            reader, _ = await connect(port, sent)
            assert (await first_line(reader)).startswith(b"HTTP/1.0 400 ")
    assert [each["event"] for each in logs] == ["http_malformed_request"]
    assert "\n" not in logs[0]["reason"]
    assert not [each for each in caplog.records if each.name.startswith("aiohttp")]


async def test_a_malformed_body_that_nobody_reads_leaves_no_traceback(connect: Connect, caplog):
    chunked = b"GET / HTTP/1.1\r\nHost: l\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    async with listening(idle_s=0.1) as (server, port):
        reader, _ = await connect(port, chunked)
        await first_line(reader)
        await until(lambda: not server.connections)
    assert not [each for each in caplog.records if each.exc_info]
