"""Puts the gateway's gRPC server together."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from specsched_protocol.grpc_status import StatusInterceptor
from specsched_protocol.v1 import executor_pb2_grpc

from specsched_executor.gateway import counters_servicer
from specsched_executor.gateway.api import EngineApi, ServedModel, Tokenizer
from specsched_executor.gateway.config import GatewayConfig
from specsched_executor.gateway.errors import STATUS_OF
from specsched_executor.gateway.ports import cannot_listen, cannot_listen_there
from specsched_executor.gateway.servicer import VllmEngineServicer
from specsched_executor.gateway.sessions import Sessions
from specsched_executor.gateway.streams import StreamHub
from specsched_executor.telemetry.requests import RequestMeter
from specsched_executor.tracing import RequestTracer

SERVICE_NAME = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name

_MIN_PING_INTERVAL_MS = 10_000
"""Gateways ping idle connections every 30 s or so; the default of 300 s would cut them off."""

_LAST_WORDS_S = 1.0
"""Time for the ends of aborted requests to reach their clients."""

_ServingStatus = health_pb2.HealthCheckResponse.ServingStatus


class Gateway:
    """The server and its readiness. Every method is called on the event loop that made it.

    port, listen_port: those of `host` and of `listen` in the options; None without the latter.
    """

    def __init__(
        self, server: grpc.aio.Server, port: int, sessions: Sessions, listen_port: int | None = None
    ) -> None:
        self.server = server
        self.port = port
        self.listen_port = listen_port
        self._sessions = sessions
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    @property
    def num_open(self) -> int:
        """Requests running or queued for clients."""
        return self._sessions.num_open

    async def start(self) -> None:
        """Listen and take requests."""
        await self._health.set(SERVICE_NAME, _ServingStatus.NOT_SERVING)
        await self.server.start()
        await self.set_serving()

    async def set_serving(self, closed_because: str | None = None) -> None:
        """Take requests; with a reason, refuse new ones and tell health checks so."""
        if closed_because is None:
            self._sessions.start_serving()
        else:
            self._sessions.stop_serving(closed_because)
        status = _ServingStatus.SERVING if closed_because is None else _ServingStatus.NOT_SERVING
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, let open ones finish for `grace_s` seconds, then abort the rest.

        Health and the other calls are answered until the end. An aborted request ends like any
        other, with what it has; only one whose client does not read even that is cut off.
        """
        await self.set_serving("it is shutting down")
        await self._sessions.drain(grace_s)
        await self.server.stop(_LAST_WORDS_S)


def build_server(
    engine: EngineApi,
    model: ServedModel,
    tokenizer: Tokenizer,
    config: GatewayConfig,
    schedulers: counters_servicer.AttachedSchedulers = counters_servicer.nobody,
    *,
    tracer: RequestTracer | None = None,
    meter: RequestMeter | None = None,
    abort_elsewhere: Callable[[str], object] | None = None,
) -> Gateway:
    """Make the gateway of an engine, bound to its port; call it on the loop that will run it.

    abort_elsewhere: aborts a request that came through another gateway of the engine, by its id.
    Raises GatewayError when the address cannot be bound.
    """
    services = (SERVICE_NAME, counters_servicer.SERVICE_NAME)
    statuses = StatusInterceptor(services, STATUS_OF, log_owner="executor", logs_refusals=False)
    server = grpc.aio.server(interceptors=[statuses], options=_options(config))
    hub = StreamHub(config.max_chunks_per_second)
    sessions = Sessions(engine, hub, config.max_open_requests, meter, abort_elsewhere)
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(
        VllmEngineServicer(engine, sessions, model, tokenizer, tracer), server
    )
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(
        counters_servicer.CountersServicer(engine, schedulers), server
    )
    gateway = Gateway(server, _bind(server, config), sessions, _bind_listen(server, config))
    reflection.enable_server_reflection(
        (
            SERVICE_NAME,
            counters_servicer.SERVICE_NAME,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        ),
        server,
    )
    return gateway


def _bind(server: grpc.aio.Server, config: GatewayConfig) -> int:
    try:
        return server.add_insecure_port(config.address)
    except RuntimeError as error:
        raise cannot_listen(config, "address already in use") from error


def _bind_listen(server: grpc.aio.Server, config: GatewayConfig) -> int | None:
    if config.listen is None:
        return None
    try:
        if config.tls is None:
            return server.add_insecure_port(str(config.listen))
        ca, certificate, key = config.tls.read()
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=ca, require_client_auth=True
        )
        return server.add_secure_port(str(config.listen), credentials)
    except (RuntimeError, OSError) as error:
        raise cannot_listen_there(config.listen, error) from error


def _options(config: GatewayConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # A few calls beside the open requests, so that health and load can always be asked.
        ("grpc.max_concurrent_streams", config.max_open_requests + 64),
        # Two executors on one port would share its requests in silence: see `ReservedPorts`.
        ("grpc.so_reuseport", int(config.shares_port)),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
