"""Whether a scheduler can do its work, as its HTTP port tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub

__all__ = ["SchedulerHealth"]

_TIMEOUT_S = 1.0
_SERVICE = pb.DESCRIPTOR.services_by_name["SchedulerService"].full_name
_STEP = plan_pb2.PlanRequest(
    max_draft_tokens=2,
    num_other_tokens=1,
    requests=[plan_pb2.RequestState(confidence=[0.9, 0.5])],
    cost=plan_pb2.CostModel(
        capture_limit=4,
        verify=[plan_pb2.VerifyCost(tokens=size, ms=[1.0]) for size in (1, 2, 4)],
    ),
)
"""A step whose decision is known: rows cost the same, so both drafts are verified."""
_BUDGET = 2


class SchedulerHealth:
    """Dials the scheduler's own socket, as an executor would. Lives on the server's event loop.

    stopped_planners: asked for the attached executors whose planner's thread has ended or hangs.
    """

    def __init__(self, socket_path: Path, stopped_planners: Callable[[], Sequence[str]]) -> None:
        self._stopped_planners = stopped_planners
        self._target = f"unix:{socket_path}"
        self._channel: grpc.aio.Channel | None = None

    def not_alive(self) -> str | None:
        """A planner that ended or hangs, which nothing but a new process brings back."""
        stopped = self._stopped_planners()
        return f"nobody decides for {', '.join(stopped)}" if stopped else None

    async def not_ready(self) -> str | None:
        """Ask the health service, then have one step decided."""
        channel = self._channel = self._channel or grpc.aio.insecure_channel(
            self._target, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        try:
            status = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=_SERVICE), timeout=_TIMEOUT_S
            )
            if status.status != health_pb2.HealthCheckResponse.SERVING:
                return "it is compiling, or shutting down"
            answer = await SchedulerServiceStub(channel).Plan(_STEP, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f"its own service answers {error.code().name}: {error.details()}"
        budget = answer.decision.budget
        return None if budget == _BUDGET else f"it decides a budget of {budget}, not {_BUDGET}"

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
