"""The clients of a scheduler, blocking and for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

from grpc_health.v1 import health_pb2
from specsched_protocol.v1 import plan_pb2, scheduler_pb2

from specsched_client import _methods as methods
from specsched_client._connected import AsyncConnected, Connected
from specsched_client._policy import to_policy_spec
from specsched_client._targets import DEFAULT_TIMEOUT_S, LANE_TIMEOUT_S
from specsched_client._transport import AsyncGrpcTransport, AsyncTransport, GrpcTransport, Transport


class SchedulerClient(Connected):
    """Calls one scheduler; close it, or use it as a context manager.

    target: unix:/path/of/its.sock or host:port. Every method raises one of `SpecschedError`.
    """

    def __init__(self, target: str, *, transport: Transport | None = None) -> None:
        super().__init__(transport or GrpcTransport(target))

    def status(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.GetStatusResponse:
        """The scheduler's policy and what is attached to it."""
        request = scheduler_pb2.GetStatusRequest()
        return self._transport.unary(methods.GET_STATUS, request, timeout_s)

    def is_serving(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """Whether it plans: not while it warms up, nor when it was told to end."""
        request = health_pb2.HealthCheckRequest()
        return _is_serving(self._transport.unary(methods.CHECK_HEALTH, request, timeout_s))

    def set_policy(
        self, policy: str | plan_pb2.PolicySpec, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.SetPolicyResponse:
        """Replace the policy between two decisions, e.g. by "fixed(k=3)"."""
        request = scheduler_pb2.SetPolicyRequest(policy=to_policy_spec(policy))
        return self._transport.unary(methods.SET_POLICY, request, timeout_s)

    def promote(
        self, *, boot_id: bytes = b"", timeout_s: float | None = LANE_TIMEOUT_S
    ) -> scheduler_pb2.PromoteResponse:
        """Have executors, all or that one, follow this scheduler; what became of it at each."""
        request = scheduler_pb2.PromoteRequest(boot_id=boot_id)
        return self._transport.unary(methods.PROMOTE, request, timeout_s)

    def drain(
        self, *, boot_id: bytes = b"", timeout_s: float | None = LANE_TIMEOUT_S
    ) -> scheduler_pb2.DrainResponse:
        """Have executors, all or that one, follow another scheduler instead of this one."""
        request = scheduler_pb2.DrainRequest(boot_id=boot_id)
        return self._transport.unary(methods.DRAIN, request, timeout_s)

    def learning(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.GetLearningResponse:
        """What was learned of each attached executor, and from how much."""
        request = scheduler_pb2.GetLearningRequest()
        return self._transport.unary(methods.GET_LEARNING, request, timeout_s)

    def set_learning(
        self, *, frozen: bool, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.SetLearningResponse:
        """Freeze what was learned as it is, or go on learning."""
        request = scheduler_pb2.SetLearningRequest(frozen=frozen)
        return self._transport.unary(methods.SET_LEARNING, request, timeout_s)

    def export_state(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> str:
        """Everything learned as one JSON document."""
        request = scheduler_pb2.ExportStateRequest()
        return self._transport.unary(methods.EXPORT_STATE, request, timeout_s).document

    def import_state(
        self, document: str, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.ImportStateResponse:
        """Go on from a document; one that is malformed is refused and changes nothing."""
        request = scheduler_pb2.ImportStateRequest(document=document)
        return self._transport.unary(methods.IMPORT_STATE, request, timeout_s)

    def plan(
        self, request: plan_pb2.PlanRequest, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> plan_pb2.PlanResponse:
        """What the scheduler would decide for a step described in full."""
        return self._transport.unary(methods.PLAN, request, timeout_s)

    def watch(
        self, *, max_per_second: int = 20, timeout_s: float | None = None
    ) -> Generator[scheduler_pb2.WatchDecisionsResponse, None, None]:
        """Decisions as they are made, sampled; closing the generator ends the call."""
        request = scheduler_pb2.WatchDecisionsRequest(max_per_second=max_per_second)
        return self._transport.stream(methods.WATCH_DECISIONS, request, timeout_s)


class AsyncSchedulerClient(AsyncConnected):
    """The same from one event loop."""

    def __init__(self, target: str, *, transport: AsyncTransport | None = None) -> None:
        super().__init__(transport or AsyncGrpcTransport(target))

    async def status(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.GetStatusResponse:
        """The scheduler's policy and what is attached to it."""
        request = scheduler_pb2.GetStatusRequest()
        return await self._transport.unary(methods.GET_STATUS, request, timeout_s)

    async def is_serving(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """Whether it plans: not while it warms up, nor when it was told to end."""
        request = health_pb2.HealthCheckRequest()
        return _is_serving(await self._transport.unary(methods.CHECK_HEALTH, request, timeout_s))

    async def set_policy(
        self, policy: str | plan_pb2.PolicySpec, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.SetPolicyResponse:
        """Replace the policy between two decisions, e.g. by "fixed(k=3)"."""
        request = scheduler_pb2.SetPolicyRequest(policy=to_policy_spec(policy))
        return await self._transport.unary(methods.SET_POLICY, request, timeout_s)

    async def promote(
        self, *, boot_id: bytes = b"", timeout_s: float | None = LANE_TIMEOUT_S
    ) -> scheduler_pb2.PromoteResponse:
        """Have executors, all or that one, follow this scheduler; what became of it at each."""
        request = scheduler_pb2.PromoteRequest(boot_id=boot_id)
        return await self._transport.unary(methods.PROMOTE, request, timeout_s)

    async def drain(
        self, *, boot_id: bytes = b"", timeout_s: float | None = LANE_TIMEOUT_S
    ) -> scheduler_pb2.DrainResponse:
        """Have executors, all or that one, follow another scheduler instead of this one."""
        request = scheduler_pb2.DrainRequest(boot_id=boot_id)
        return await self._transport.unary(methods.DRAIN, request, timeout_s)

    async def learning(
        self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.GetLearningResponse:
        """What was learned of each attached executor, and from how much."""
        request = scheduler_pb2.GetLearningRequest()
        return await self._transport.unary(methods.GET_LEARNING, request, timeout_s)

    async def set_learning(
        self, *, frozen: bool, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.SetLearningResponse:
        """Freeze what was learned as it is, or go on learning."""
        request = scheduler_pb2.SetLearningRequest(frozen=frozen)
        return await self._transport.unary(methods.SET_LEARNING, request, timeout_s)

    async def export_state(self, *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> str:
        """Everything learned as one JSON document."""
        request = scheduler_pb2.ExportStateRequest()
        return (await self._transport.unary(methods.EXPORT_STATE, request, timeout_s)).document

    async def import_state(
        self, document: str, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> scheduler_pb2.ImportStateResponse:
        """Go on from a document; one that is malformed is refused and changes nothing."""
        request = scheduler_pb2.ImportStateRequest(document=document)
        return await self._transport.unary(methods.IMPORT_STATE, request, timeout_s)

    async def plan(
        self, request: plan_pb2.PlanRequest, *, timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> plan_pb2.PlanResponse:
        """What the scheduler would decide for a step described in full."""
        return await self._transport.unary(methods.PLAN, request, timeout_s)

    def watch(
        self, *, max_per_second: int = 20, timeout_s: float | None = None
    ) -> AsyncGenerator[scheduler_pb2.WatchDecisionsResponse, None]:
        """Decisions as they are made, sampled; closing the generator ends the call."""
        request = scheduler_pb2.WatchDecisionsRequest(max_per_second=max_per_second)
        return self._transport.stream(methods.WATCH_DECISIONS, request, timeout_s)


def _is_serving(answer: health_pb2.HealthCheckResponse) -> bool:
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
