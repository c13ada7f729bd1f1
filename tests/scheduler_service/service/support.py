"""A scheduler and an executor's end of the shared memory, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_executor.transport.lanes import LaneOffer
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import NO_BUDGET_CAP, ConfidenceRows, PlanRequest, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub
from specsched_scheduler.service import SchedulerServer

NUM_REQUESTS = 3
MAX_DRAFT_TOKENS = 4
TIMEOUT_S = 60.0

# Twelve more rows cost what 5 tokens bring: worth it for sure drafts only.
STEEP_COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[2.0 + n / 2]) for n in (1, 3, 8, 15)],
    capture_limit=15,
)


@dataclass
class Scheduler:
    server: SchedulerServer
    task: asyncio.Task[None]
    channel: grpc.aio.Channel
    stub: SchedulerServiceStub

    async def health(self, service: str = "") -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        return reply.status

    async def until_serving(self) -> None:
        async with asyncio.timeout(120):
            while await self.health() != health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.02)

    async def status(self) -> pb.GetStatusResponse:
        return await self.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)

    async def set_policy(self, name: str, **parameters: float) -> pb.SetPolicyResponse:
        spec = plan_pb2.PolicySpec(name=name, parameters=parameters)
        return await self.stub.SetPolicy(pb.SetPolicyRequest(policy=spec), timeout=TIMEOUT_S)

    async def stop(self) -> None:
        self.server.stop()
        await asyncio.wait_for(self.task, TIMEOUT_S)
        await self.channel.close()


class AttachCall:
    """One Attach stream, spoken by the test."""

    def __init__(self, stub: SchedulerServiceStub) -> None:
        self.call: Any = stub.Attach()

    async def send(self, **message: Any) -> None:
        await self.call.write(pb.AttachRequest(**message))

    async def receive(self, kind: str) -> Any:
        """The next message of this kind; only what comes by itself may come before it."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                response = await self.call.read()
                assert response is not grpc.aio.EOF, await self.status()
                got = response.WhichOneof("message")
                if got == kind or got not in ("heartbeat", "calibration"):
                    assert got == kind, response
                    return getattr(response, kind)

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended, once it has."""
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()


class SharedMemoryExecutor:
    """The executor's side: real regions and hand-over, steps as the test makes them."""

    def __init__(self, run_dir: RunDir) -> None:
        shape = RegionShape(NUM_REQUESTS, MAX_DRAFT_TOKENS)
        self.transport = SharedMemoryTransport(run_dir, shape)
        self._step_id = 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.transport.close()

    def hello(self, offer: LaneOffer, **changes: Any) -> pb.Hello:
        facts: dict[str, Any] = {
            "protocol": pb.ProtocolRange(min_version=1, max_version=1),
            "boot_id": self.transport.boot_id,
            "executor_name": "test",
            "model": pb.ModelFacts(
                name="tiny", max_requests=NUM_REQUESTS, max_draft_tokens=MAX_DRAFT_TOKENS
            ),
            "cost": STEEP_COST,
            "shared_memory": offer.shared_memory,
            "lane": offer.lane,
            "epoch": offer.epoch,
        }
        return pb.Hello(**(facts | changes))

    @contextlib.asynccontextmanager
    async def attached(self, scheduler: Scheduler) -> AsyncIterator[AttachCall]:
        """Attached, ready and active inside the context."""
        offer = self.transport.open_lane()
        stream = AttachCall(scheduler.stub)
        await stream.send(hello=self.hello(offer))
        await stream.receive("welcome")
        await stream.receive("ready")
        self.transport.lane_ready(offer.lane)
        self.transport.activate(offer.lane)
        try:
            yield stream
        finally:
            stream.call.cancel()
            self.transport.close_lane(offer.lane)

    async def decide(self, confidence: float = 0.9) -> StepDecision:
        """Publish the next step, all rows of equal confidence; wait for its decision."""
        self._step_id += 1
        self.transport.publish(*make_step(self._step_id, confidence))
        async with asyncio.timeout(TIMEOUT_S):
            while not isinstance(decision := self.transport.read(self._step_id), StepDecision):
                await asyncio.sleep(0.001)
        return decision


def make_step(step_id: int, confidence: float) -> tuple[ConfidenceRows, PlanRequest]:
    """A step of all requests with all drafts, every confidence alike."""
    slots = np.arange(NUM_REQUESTS, dtype=np.uint32)
    generations = np.ones(NUM_REQUESTS, dtype=np.uint32)
    num_drafts = np.full(NUM_REQUESTS, MAX_DRAFT_TOKENS, dtype=np.uint32)
    shape = (NUM_REQUESTS, MAX_DRAFT_TOKENS)
    rows = ConfidenceRows(
        source_step_id=step_id - 2,
        slot_id=slots,
        generation=generations,
        num_draft_tokens=num_drafts,
        confidence=np.full(shape, confidence, dtype=np.float32),
    )
    request = PlanRequest(
        step_id=step_id,
        source_step_id=step_id - 2,
        num_other_tokens=NUM_REQUESTS,
        num_prefill_tokens=0,
        max_budget=NO_BUDGET_CAP,
        slot_id=slots,
        generation=generations,
        num_draft_tokens=num_drafts,
        samples=np.ones(NUM_REQUESTS, dtype=np.bool_),
        weight=np.ones(NUM_REQUESTS, dtype=np.float32),
        context_tokens=np.zeros(NUM_REQUESTS, dtype=np.uint32),
        is_greedy=np.zeros(NUM_REQUESTS, dtype=np.bool_),
    )
    return rows, request
