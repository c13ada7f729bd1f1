"""The executor's HTTP port: health and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from specsched_protocol.http.listeners import Listeners
from specsched_protocol.http.server import HttpServer
from specsched_protocol.metrics import build_registry

from specsched_executor.telemetry import ExecutorHealth, RequestMeter
from specsched_executor.telemetry.telemetry import ExecutorTelemetry

from .assembly import Executor

__all__ = ["PREFERRED_PORT", "serving_http"]

PREFERRED_PORT: Final = 9471
"""Of --http-address auto; a second executor of the machine takes any free one."""


@asynccontextmanager
async def serving_http(
    name: str, executor: Executor, meter: RequestMeter, listeners: Listeners
) -> AsyncIterator[ExecutorHealth]:
    """Answer on the sockets there are, for the block. name: of the model, as clients see it.

    Tell the health that is yielded where the gateway API listens once it does, and how to see that
    the engine lives.
    """
    health = ExecutorHealth()
    telemetry = ExecutorTelemetry(name, executor.engine, meter, executor.links)
    server = HttpServer(build_registry(telemetry), health)
    try:
        await server.start(listeners)
        yield health
    finally:
        await server.stop()
        await health.close()
