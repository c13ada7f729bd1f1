"""Whether an executor can serve, as its HTTP port tells it."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc

__all__ = ["ExecutorHealth"]

_TIMEOUT_S = 1.0
_SERVICE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name


class ExecutorHealth:
    """Dials the executor's own gateway API, as a gateway would. Lives on the server's event loop.

    target: of the gateway API, None before it listens. not_alive: why only a new process could
    serve again, None while that is not so; set both when they are known.
    """

    def __init__(self) -> None:
        self.target: str | None = None
        self.not_alive: Callable[[], str | None] = lambda: None
        self._channel: grpc.aio.Channel | None = None

    async def not_ready(self) -> str | None:
        """Ask the health service, then the engine's own for its load."""
        if self.target is None:
            return "it has not served a first request of its own yet"
        channel = self._channel = self._channel or grpc.aio.insecure_channel(
            self.target, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        engine = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        try:
            status = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=_SERVICE), timeout=_TIMEOUT_S
            )
            health = await engine.HealthCheck(
                vllm_engine_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S
            )
            await engine.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f"its own service answers {error.code().name}: {error.details()}"
        is_serving = status.status == health_pb2.HealthCheckResponse.SERVING
        return None if health.healthy and is_serving else f"it takes no requests: {health.message}"

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
