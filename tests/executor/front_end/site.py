"""Where front ends are started: an engine in this process, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from specsched_executor.config import ExecutorConfig
from specsched_executor.front_end import FrontEndProcess, FrontEnds, FrontEndSetup
from specsched_executor.gateway import GatewayConfig
from specsched_executor.gateway.counters_servicer import nobody
from specsched_executor.telemetry import RequestMeter

from tests.executor.gateway.fakes import MODEL, FakeEngine, WordTokenizer

_FrontEnd = TypeVar("_FrontEnd", FrontEndProcess, FrontEnds)


class Site:
    """gateway: options that differ from a free port on loopback."""

    def __init__(self, engine: FakeEngine, **gateway: Any) -> None:
        self.has_failed = asyncio.Event()
        self.meter = RequestMeter()
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        tokenizer, where = WordTokenizer(), GatewayConfig(**{"port": 0, **gateway})
        options = ExecutorConfig(port=0)
        self._setup = FrontEndSetup(options, where, MODEL, tokenizer._fast, tokenizer.files())

    def one(self) -> FrontEndProcess:
        return FrontEndProcess(*self._parts())

    def several(self, count: int) -> FrontEnds:
        return FrontEnds(*self._parts(), count=count)

    def _parts(self) -> tuple[Any, ...]:
        return self._engine, self._setup, nobody, self.meter, self._fail

    def _fail(self) -> None:
        self._loop.call_soon_threadsafe(self.has_failed.set)


@asynccontextmanager
async def started(front_end: _FrontEnd) -> AsyncIterator[_FrontEnd]:
    """Serves inside the context."""
    await front_end.start()
    yield front_end
    await front_end.stop(grace_s=0)
