"""Health, metrics and mounted routes of one process, served in its own event loop.

    GET /livez     200 while the process can do its work, else 503: it should be started again
    GET /readyz    200 while its own gRPC service answers a real call, else 503 with the reason
    GET /metrics   Prometheus text, or OpenMetrics where that is asked for

Two listeners with different reach. The local one, loopback only, has these and whatever is mounted;
it answers only requests that name a loopback host, so that no page of another site can reach it
through a name that it rebinds (DNS rebinding). The probe listener may be reached from other
machines, a kubelet or a Prometheus, and has these three alone: they read, and tell nothing of what
is served but numbers and the model's name.

Either has so many connections at a time, closes one that sends or takes nothing for some seconds,
and tells the log of a malformed request in one line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, cast

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from specsched_protocol.http.connections import ACCEPTS_AT_ONCE, Connections
from specsched_protocol.http.listeners import BACKLOG, Listeners
from specsched_protocol.tcp import TcpAddress

__all__ = ["Health", "HttpServer"]

_log = structlog.get_logger(__name__)

_END_S = 0.5
"""Time that open responses (streams of events among them) get when the process ends."""
_MAX_BODY_BYTES = 64 << 10
_MAX_LOCAL, _MAX_PROBE = 32, 16
"""Connections at a time: all pages that may be open and what loads them; kubelets and scrapers."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Health(Protocol):
    """What a process says of itself. Lives on its event loop."""

    @property
    def not_alive(self) -> Callable[[], str | None]:
        """Tells why this process can only be mended by starting it again; None: it is alive."""

    async def not_ready(self) -> str | None:
        """Why it cannot serve now, found by calling its own service; None: it serves."""


class HttpServer:
    """Serves a process's registry and health. Lives on the event loop that starts it.

    port, probe_port: what is listened on, None before and without.
    """

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self.port: int | None = None
        self.probe_port: int | None = None
        self._registry = registry
        self._health = health
        self._collecting = asyncio.Lock()
        self._mounted: list[web.AbstractRouteDef] = []
        self._runners: list[web.AppRunner] = []
        self._accepting: list[asyncio.Server] = []

    def mount(self, routes: Iterable[web.AbstractRouteDef]) -> None:
        """Serve `routes` too, on the local listener alone. Before `start`."""
        self._mounted += routes

    async def start(self, listeners: Listeners) -> None:
        """Serve on the sockets there are; they stay the caller's to close."""
        if listeners.local is not None:
            app = web.Application(middlewares=[_local_only], client_max_size=_MAX_BODY_BYTES)
            app.add_routes([*self._routes(), *self._mounted])
            self.port = await self._listen(app, listeners.local, "http_address", _MAX_LOCAL)
        if listeners.probe is not None:
            app = web.Application(client_max_size=_MAX_BODY_BYTES)
            app.add_routes(self._routes())
            self.probe_port = await self._listen(app, listeners.probe, "probe_address", _MAX_PROBE)

    async def stop(self) -> None:
        """Close both listeners; responses that are open are cut off soon."""
        accepting, self._accepting = self._accepting, []
        for each in accepting:
            each.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    def _routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
        ]

    async def _listen(
        self, app: web.Application, sock: socket.socket, option: str, max_connections: int
    ) -> int:
        runner = web.AppRunner(app, shutdown_timeout=_END_S)
        await runner.setup()
        self._runners.append(runner)
        server = cast("web.Server", runner.server)  # there is one since its setup
        connections = Connections(server, option, max_connections=max_connections)
        self._accepting.append(
            await asyncio.get_running_loop().create_server(
                connections, sock=sock, backlog=ACCEPTS_AT_ONCE
            )
        )
        sock.listen(BACKLOG)  # asyncio has made the queue as short as what it accepts at once
        host, port = sock.getsockname()[:2]
        _log.info("http", address=str(TcpAddress(host, port)), option=option)
        return int(port)

    # ===================== Handlers =====================

    async def _livez(self, _: web.Request) -> web.StreamResponse:
        return _verdict(self._health.not_alive(), "alive")

    async def _readyz(self, _: web.Request) -> web.StreamResponse:
        reason = self._health.not_alive() or await self._health.not_ready()
        return _verdict(reason, "ready")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        async with self._collecting:  # scrapers wait for each other: one thread at most is busy
            body = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})


def _verdict(reason: str | None, good: str) -> web.Response:
    text = f"{good}\n" if reason is None else f"{reason}\n"
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=text, status=200 if reason is None else 503, headers=headers)


@web.middleware
async def _local_only(request: web.Request, handler: _Handler) -> web.StreamResponse:
    host = request.host
    try:
        is_local = TcpAddress.parse(host if _has_port(host) else f"{host}:80").is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise web.HTTPMisdirectedRequest(text=f"host {host!r}: accepted are loopback names\n")
    return await handler(request)


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]
