"""The routes of the live page.

GET  /               the page; its parts below /page/
GET  /page/events    server-sent events: `whole` at first, then `change` each second; `beat`
                     where there is nothing new, `end` before the process ends, `full` at once
                     where too many listen already
POST /page/promote   {"scheduler": NAME}: as `specsched promote NAME`, where that is enabled
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

from aiohttp import web

from specsched_scheduler.telemetry import SchedulerTelemetry

from .feed import Feed, TooManyListenersError
from .frame import Payload, event
from .origin import check_reader, check_writer
from .payload import payload
from .promotion import PromotionError, Promotions
from .static_files import SECURITY_HEADERS, static_routes
from .verdict import Phase

__all__ = ["Page"]

_SEND_S = 10.0
"""Time in which a listener has to take what it is sent, and a body has to come."""

_EVENT_HEADERS = SECURITY_HEADERS | {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
}


class Page:
    """Lives on the server's event loop.

    phase: of the process, asked for at each look. promotions: None where they are not enabled.
    """

    def __init__(
        self,
        telemetry: SchedulerTelemetry,
        phase: Callable[[], Phase],
        promotions: Promotions | None,
    ) -> None:
        self._telemetry = telemetry
        self._phase = phase
        self._promotions = promotions
        self._feed = Feed(self._look)

    def routes(self) -> list[web.RouteDef]:
        """To be mounted on a listener that only this machine reaches."""
        return [
            *static_routes(),
            web.get("/page/events", self._events, allow_head=False),
            web.post("/page/promote", self._promote),
        ]

    async def close(self) -> None:
        """Tell open pages that the process ends."""
        await self._feed.close()

    def _look(self) -> Payload:
        promotable = self._promotions.promotable() if self._promotions else ()
        return payload(self._telemetry.snapshot(), self._phase(), promotable)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        check_reader(request)
        try:
            async with self._feed.listener() as events:
                response = web.StreamResponse(headers=_EVENT_HEADERS)
                await response.prepare(request)
                async for each in events:
                    await _send(response, request, each)
                return response
        except TooManyListenersError as error:
            # With an error status a browser's event source would tell nobody why.
            return web.Response(body=event("full", {"reason": str(error)}), headers=_EVENT_HEADERS)

    async def _promote(self, request: web.Request) -> web.StreamResponse:
        check_writer(request)
        if self._promotions is None:
            raise web.HTTPForbidden(text="not enabled: start the scheduler with --page-promote\n")
        name = await _scheduler_name(request)
        try:
            told = await self._promotions.promote(name)
        except PromotionError as error:
            raise web.HTTPConflict(text=f"{error}\n") from None
        return web.json_response({"executors": told}, headers=SECURITY_HEADERS)


async def _send(response: web.StreamResponse, request: web.Request, data: bytes) -> None:
    """Raises ConnectionError, the connection cut, where the listener does not read."""
    try:
        async with asyncio.timeout(_SEND_S):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionError("the listener does not read") from None


async def _scheduler_name(request: web.Request) -> str:
    body = None
    try:
        async with asyncio.timeout(_SEND_S):
            content = await request.read()
        # RecursionError: nested too deeply.
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(content)  # UTF-8, whatever the head says of it
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body did not come in time\n") from None
    except web.RequestPayloadError:
        pass  # such as chunks that are none
    name = body.get("scheduler") if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise web.HTTPBadRequest(text='accepted: {"scheduler": "NAME"}\n')
    return name
