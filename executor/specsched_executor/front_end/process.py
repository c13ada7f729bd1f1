"""The front end's process as the engine's process holds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import structlog
from specsched_protocol.ending import signals_blocked

from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.order_taker import OrderTaker, sendable_stats
from specsched_executor.front_end.setup import FrontEndSetup
from specsched_executor.gateway.api import EngineApi
from specsched_executor.gateway.counters_servicer import AttachedSchedulers
from specsched_executor.gateway.errors import GatewayError
from specsched_executor.telemetry import RequestMeter

__all__ = ["FrontEndProcess"]

_log = structlog.get_logger(__name__)

_START_TIMEOUT_S: Final = 120.0
_END_TIMEOUT_S: Final = 5.0


class FrontEndProcess:
    """A gateway (see `Gateway`) in a child process. Methods are called on the event loop.

    meter: kept like the front end's own, a fraction of a second behind. on_failure: called from
    another thread, once, where the child ends without being told to.
    """

    def __init__(
        self,
        engine: EngineApi,
        setup: FrontEndSetup,
        schedulers: AttachedSchedulers,
        meter: RequestMeter,
        on_failure: Callable[[], None],
    ) -> None:
        self.port = 0
        self.listen_port: int | None = None
        self._on_failure = on_failure
        self._meter = meter
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Future[m.Listening] = self._loop.create_future()
        ours, theirs = socket.socketpair()
        with theirs, signals_blocked():  # sent to both: this process says when the other ends
            self._child = subprocess.Popen(  # noqa: S603 - this package, by this interpreter
                [sys.executable, "-m", "specsched_executor.front_end", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
            )
        self._channel = Channel(ours)
        questions = {
            m.Topic.STATS: lambda: sendable_stats(engine),
            m.Topic.SCHEDULERS: lambda: schedulers().SerializeToString(),
        }
        self._orders = OrderTaker(
            self._channel, engine, questions, on_message=self._take, on_end=self._end
        )
        self._orders.outbox.put(setup)
        self._orders.start()

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._child.pid

    async def start(self) -> None:
        """Take requests. Raises GatewayError where the child cannot listen, or does not start."""
        await self.listening()
        self._orders.outbox.put(m.Serve())

    async def listening(self) -> None:
        """Wait until its ports are bound; raises as `start`."""
        try:
            listening = await asyncio.wait_for(self._listening, _START_TIMEOUT_S)
        except TimeoutError as error:
            self._is_stopping = True
            self._child.kill()
            raise GatewayError(f"the front end did not start in {_START_TIMEOUT_S} s") from error
        self.port, self.listen_port = listening.port, listening.listen_port

    async def stop(self, grace_s: float) -> None:
        """See `Gateway.stop`; the child has ended afterwards."""
        self._is_stopping = True
        self._orders.outbox.put(m.Stop(grace_s))
        await asyncio.to_thread(self._reap, grace_s + _END_TIMEOUT_S)

    def _reap(self, timeout_s: float) -> None:
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.warning("front end does not end", pid=self._child.pid, remedy="it is killed")
            self._child.kill()
            self._child.wait()
        self._orders.close()

    def _take(self, message: Any) -> None:
        match message:
            case m.Metered(state):
                self._meter.__dict__.update(state)
            case m.Listening():
                self._tell(message)
            case m.CannotListen(reason):
                self._is_stopping = True  # it ends by itself
                self._tell(GatewayError(reason))

    def _tell(self, result: m.Listening | GatewayError) -> None:
        def tell() -> None:
            if self._listening.done():
                return
            if isinstance(result, GatewayError):
                self._listening.set_exception(result)
            else:
                self._listening.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(tell)

    def _end(self) -> None:
        if self._is_stopping:
            return
        _log.error("front end ended", pid=self._child.pid, engine_pid=os.getpid())
        self._tell(GatewayError("the front end ended as it started"))
        self._on_failure()
