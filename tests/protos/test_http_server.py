"""The HTTP port: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily
from pydantic import BaseModel, ValidationError
from specsched_protocol.http.address import HttpAddress, ProbeAddress, http_candidates
from specsched_protocol.http.listeners import HttpListenError, Listeners
from specsched_protocol.http.server import HttpServer
from specsched_protocol.metrics import build_registry


class Health:
    """Says what the test wants it to say."""

    def __init__(self) -> None:
        self.alive: str | None = None
        self.ready: str | None = None

    @property
    def not_alive(self) -> Callable[[], str | None]:
        return lambda: self.alive

    async def not_ready(self) -> str | None:
        return self.ready


class Source:
    def collect(self):
        return [GaugeMetricFamily("answer", "Of everything.", 42)]


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def server(health) -> AsyncIterator[HttpServer]:
    with Listeners.bind("127.0.0.1:0", "0.0.0.0:0", 0) as listeners:
        server = HttpServer(build_registry(Source()), health)
        server.mount([web.get("/page", hello), web.get("/events", forever)])
        await server.start(listeners)
        yield server
        await server.stop()


async def hello(_: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


async def forever(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"data: x\n\n")
        await asyncio.sleep(0.01)


async def get(port: int | None, path: str, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text()


async def test_health_is_told_with_its_reason(server, health):
    for port in (server.port, server.probe_port):
        assert await get(port, "/livez") == (200, "alive\n")
        assert await get(port, "/readyz") == (200, "ready\n")
    health.ready = "it compiles"
    assert await get(server.probe_port, "/readyz") == (503, "it compiles\n")
    assert await get(server.probe_port, "/livez") == (200, "alive\n")
    health.alive = "the engine has ended"
    assert await get(server.probe_port, "/livez") == (503, "the engine has ended\n")
    assert await get(server.probe_port, "/readyz") == (503, "the engine has ended\n")


async def test_metrics_come_in_the_format_that_is_asked_for(server):
    status, text = await get(server.port, "/metrics")
    assert status == 200
    assert "answer 42.0\n" in text
    assert "process_cpu_seconds_total" in text
    accepted = "application/openmetrics-text; version=1.0.0"
    assert (await get(server.port, "/metrics", Accept=accepted))[1].endswith("# EOF\n")


async def test_what_is_mounted_is_local_only(server):
    assert await get(server.port, "/page") == (200, "hello")
    assert (await get(server.probe_port, "/page"))[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.7:9470", "[::2]:1"])
async def test_a_rebound_name_is_turned_away(server, host):
    status, text = await get(server.port, "/metrics", Host=host)
    assert status == 421
    assert "accepted are loopback names" in text
    assert (await get(server.probe_port, "/livez", Host=host))[0] == 200


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:9470", "[::1]"]
)
async def test_loopback_names_are_welcome(server, host):
    assert (await get(server.port, "/page", Host=host))[0] == 200


async def test_only_reading_is_possible(server):
    async with aiohttp.ClientSession() as session:
        for path in ("/livez", "/readyz", "/metrics"):
            async with session.post(f"http://127.0.0.1:{server.probe_port}{path}") as response:
                assert response.status == 405


async def test_an_open_stream_does_not_hold_the_end_up(server):
    url = f"http://127.0.0.1:{server.port}/events"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        await response.content.readline()
        await asyncio.wait_for(server.stop(), 60)
        with contextlib.suppress(aiohttp.ClientError):
            while await response.content.read(1 << 16):
                pass


def test_auto_takes_another_port_where_its_own_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Listeners.bind("auto", None, port) as listeners:
            assert listeners.local.getsockname()[1] not in {0, port}
            assert listeners.probe is None
        with (
            pytest.raises(HttpListenError, match=rf"127.0.0.1:{port} \(--http-address\)"),
            Listeners.bind(f"127.0.0.1:{port}", None, 0),
        ):
            pass
    with Listeners.bind("off", None, port) as listeners:
        assert listeners == Listeners(None, None)
    with Listeners.bind("auto", None, port) as listeners:
        assert listeners.local.getsockname() == ("127.0.0.1", port)
    assert http_candidates("off", 1) == ()


class Options(BaseModel):
    http_address: HttpAddress = "auto"
    probe_address: ProbeAddress = None


@pytest.mark.parametrize("text", ["0.0.0.0:9470", "10.0.0.7:1", "example.org:80"])
def test_the_local_port_stays_local(text):
    with pytest.raises(ValidationError, match="probe_address"):
        Options(http_address=text)
    assert Options(probe_address=text).probe_address == text


@pytest.mark.parametrize("text", ["9470", "on", "127.0.0.1", "127.0.0.1:70000", ""])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValidationError, match="host:port"):
        Options(http_address=text)
    with pytest.raises(ValidationError, match="host:port"):
        Options(probe_address=text)
