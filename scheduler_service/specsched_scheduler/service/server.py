"""The scheduler process: claims its socket, serves, warms up, says so, ends cleanly."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from importlib.metadata import version

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from specsched_protocol.grpc_status import StatusInterceptor
from specsched_protocol.http.listeners import Listeners
from specsched_protocol.run_dir import RunDir
from specsched_protocol.sd_notify import Notifier, feed_watchdog
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server

from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.learning.document import LearnedState
from specsched_scheduler.learning.warm import warm_up_learning
from specsched_scheduler.planner import PlannerConfig, warm_up
from specsched_scheduler.policies import BuiltPolicy
from specsched_scheduler.telemetry.warm import warm_up_telemetry

from .abandonable import in_daemon_thread
from .attachments import Attachments
from .errors import STATUS_OF
from .learned import LearnedStates
from .listening import KEEPALIVE_OPTIONS, listen_on_socket, listen_on_tcp
from .servicer import Identity, SchedulerServicer
from .socket_claim import claim_socket
from .web import PREFERRED_PORT, SchedulerWeb

__all__ = ["SERVICE_NAME", "SchedulerServer"]

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["SchedulerService"].full_name

_MAX_CALLS = 256
"""Calls of all kinds at once, streams included; more are refused with RESOURCE_EXHAUSTED."""
_MESSAGE_HEAD_BYTES = 1 << 10
"""More than what a message has beside its document."""

_TELL_AFTER_S, _TELL_AGAIN_S = 2.0, 30.0
"""A warm-up that takes longer compiles, and is told, again and again."""

_log = structlog.get_logger(__name__)

_Serving = health_pb2.HealthCheckResponse.ServingStatus


class SchedulerServer:
    """One scheduler on one Unix socket, and on TCP if wanted. `serve` runs until `stop`.

    tcp_port: the port that is listened on, None before and without. web: its HTTP port.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        run_dir: RunDir,
        policy: BuiltPolicy,
        state: LearnedState | None = None,
    ) -> None:
        self.socket_path = run_dir.scheduler_socket(config.name)
        self.tcp_port: int | None = None
        self._config = config
        self._notifier = Notifier.of(os.environ)
        self._stop = asyncio.Event()
        self._warmed = asyncio.Event()
        learned = LearnedStates(
            state or LearnedState(),
            is_frozen=config.freeze_learning,
            max_bytes=config.max_message_bytes - _MESSAGE_HEAD_BYTES,
        )
        self._attachments = Attachments(policy, config.max_attachments, learned)
        self._health = health.aio.HealthServicer()
        self.web = SchedulerWeb(
            config.name,
            version("specsched"),
            run_dir,
            self._attachments,
            can_promote=config.page_promote,
        )

    def stop(self) -> None:
        """Have `serve` end in good order. Call it on the server's event loop."""
        self._stop.set()

    async def serve(self) -> None:
        """Serve until told to stop.

        Raises SocketInUseError, ListenError, HttpListenError or RunDirError before it begins.
        """
        http = (self._config.http_address, self._config.probe_address, PREFERRED_PORT)
        with claim_socket(self.socket_path), Listeners.bind(*http) as listeners:
            server = self._build()
            await self._health.set(SERVICE_NAME, _Serving.NOT_SERVING)
            await self._health.set("", _Serving.NOT_SERVING)
            address, tls = self._config.listen_address, self._config.tls
            if address is not None:
                self.tcp_port = listen_on_tcp(server, address, tls)
            listen_on_socket(server, self.socket_path)
            await server.start()
            await self.web.start(listeners)
            _log.info(
                "listening",
                socket=str(self.socket_path),
                tcp_port=self.tcp_port,
                mutual_tls=tls is not None,
                policy=str(self._attachments.policy),
                pid=os.getpid(),
            )
            try:
                await self._serve_until_stopped()
            finally:
                await self._shut_down(server)
                await self.web.stop()

    async def _serve_until_stopped(self) -> None:
        warming = asyncio.ensure_future(self._warm_up())
        stopped = asyncio.ensure_future(self._stop.wait())
        watchdog = asyncio.ensure_future(feed_watchdog(self._notifier, self.web.not_alive))
        try:
            await asyncio.wait({warming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if warming.done():
                warming.result()
            await stopped
        finally:
            for each in (warming, stopped, watchdog):
                each.cancel()

    def _build(self) -> grpc.aio.Server:
        max_bytes = self._config.max_message_bytes
        server = grpc.aio.server(
            interceptors=[
                StatusInterceptor(
                    (SERVICE_NAME,), STATUS_OF, log_owner="scheduler", logs_refusals=True
                )
            ],
            options=[
                ("grpc.max_receive_message_length", max_bytes),
                ("grpc.max_send_message_length", max_bytes),
                *KEEPALIVE_OPTIONS,
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        identity = Identity(
            self._config.name, version("specsched"), secrets.token_bytes(16), time.monotonic()
        )
        servicer = SchedulerServicer(
            identity,
            self._attachments,
            self._warmed,
            planner_config=PlannerConfig(
                spin_us=self._config.planner_spin_us,
                core=self._config.planner_core,
                is_recording=self._config.trace_dir is not None,
            ),
            trace=self._config.trace,
            heartbeat_s=self._config.heartbeat_ms / 1e3,
            hello_timeout_s=self._config.hello_timeout_ms / 1e3,
            max_message_bytes=max_bytes,
        )
        add_SchedulerServiceServicer_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        return server

    async def _warm_up(self) -> None:
        started = time.monotonic()
        telling = asyncio.ensure_future(_tell_of_compiling())
        try:
            await in_daemon_thread(_warm_up, name="warm-up")
        finally:
            telling.cancel()
        self._warmed.set()
        self.web.phase = "serving"
        await self._health.set(SERVICE_NAME, _Serving.SERVING)
        await self._health.set("", _Serving.SERVING)
        _log.info("serving", warm_up_s=round(time.monotonic() - started, 3))
        self._notifier.ready(f"decides by {self._attachments.policy} on {self.socket_path}")

    async def _shut_down(self, server: grpc.aio.Server) -> None:
        self.web.phase = "ending"
        _log.info("ending", is_compiling=not self._warmed.is_set())
        self._notifier.stopping("hands over to another scheduler, if there is one")
        await self._health.enter_graceful_shutdown()
        grace_s = self._config.shutdown_grace_ms / 1e3
        await self._hand_over(grace_s)
        self._attachments.close()
        self._warmed.set()  # who waits for it is told; nobody waits for what will not end
        try:
            await asyncio.wait_for(self._attachments.wait_until_empty(), grace_s)
        except TimeoutError:
            _log.warning("executors still attached at the end of the grace period")
        await server.stop(grace_s)
        _log.info("stopped", socket=str(self.socket_path))

    async def _hand_over(self, timeout_s: float) -> None:
        """Announce the end while still deciding, so that a shadow takes over between two steps."""
        if not any(self._attachments):
            return
        try:
            async with asyncio.timeout(timeout_s):
                changes = await self._attachments.wish(pb.LANE_WISH_DRAIN, stays=False)
        except TimeoutError:
            _log.warning("executors did not answer the announcement of the end")
            return
        for change in changes:
            executor, reply = change.executor_name, change.reply
            if reply.done:
                _log.info("drained", executor=executor, successor=reply.active_scheduler)
            else:
                _log.info("nobody takes over", executor=executor, because=reply.reason)


async def _tell_of_compiling() -> None:
    await asyncio.sleep(_TELL_AFTER_S)
    _log.info("compiling", takes="a minute or two the first time; executors wait")
    since = time.monotonic()
    while True:
        await asyncio.sleep(_TELL_AGAIN_S)
        _log.info("still compiling", for_s=round(time.monotonic() - since))


def _warm_up() -> None:
    warm_up()
    warm_up_telemetry(*warm_up_learning())
