"""The connections of one HTTP listener: so many, and none for longer than it is used."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError

__all__ = ["ACCEPTS_AT_ONCE", "Connections"]

_log = structlog.get_logger(__name__)

ACCEPTS_AT_ONCE = 8
"""As asyncio's `backlog`: connections it accepts before one of them can be counted."""
_IDLE_S = 10.0
"""Time to send a whole request head, from the start or from the last response."""
_SEND_S = 10.0
_TELL_INTERVAL_S = 60.0


class Connections:
    """Makes a protocol for each accepted connection; asyncio's protocol factory.

    max_connections: further ones are closed at once. idle_s: a connection that sends no whole
    request head for so long is closed; send_s: so is one that does not take its response.
    Lives on the event loop.
    """

    def __init__(
        self,
        server: web.Server,
        option: str,
        *,
        max_connections: int,
        idle_s: float = _IDLE_S,
        send_s: float = _SEND_S,
    ) -> None:
        self.send_s = send_s
        self._server = server
        self._option = option
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._told_s = -math.inf

    def __call__(self) -> asyncio.Protocol:
        """A protocol for one more."""
        return _Connection(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._idle_s,
            lingering_time=self._idle_s,
            access_log=None,
            auto_decompress=False,
        )

    def has_place(self) -> bool:
        """Whether one more may stay; tells the log where not, now and then."""
        if len(self._server.connections) < self._max_connections:
            return True
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._told_s + _TELL_INTERVAL_S:
            self._told_s = now_s
            _log.warning(
                "http_connections_full", option=self._option, accepted=self._max_connections
            )
        return False


class _Connection(web.RequestHandler):
    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connections.has_place():
            super().connection_made(transport)
        elif isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            async with asyncio.timeout(self._connections.send_s):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.force_close()
            return resp, True

    def force_close(self) -> None:
        # Closing alone would first wait until the peer takes what is left.
        transport = self.transport
        super().force_close()
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            first_line = str(error).strip().partition("\n")[0]
            _log.info("http_malformed_request", reason=first_line[:200])
        elif not isinstance(error, ConnectionError):  # which is a peer that left
            super().log_exception(*args, **kw)
