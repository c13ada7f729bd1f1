"""The executor's side of an attachment whose steps travel on the stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lanes import LaneOffer
from specsched_protocol.plan import StepDecision
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.scheduler_service.service.support import (
    AttachCall,
    Scheduler,
    SharedMemoryExecutor,
    make_step,
)


class InlineExecutor(SharedMemoryExecutor):
    """Steps as the test makes them; each message is sent and delivered by the test itself."""

    lane: InlineLane
    stream: AttachCall

    def inline_hello(self, offer: LaneOffer, **changes: Any) -> pb.Hello:
        return self.hello(offer, **({"shared_memory": None, "accepts_inline": True} | changes))

    @contextlib.asynccontextmanager
    async def attached(self, scheduler: Scheduler, **changes: Any) -> AsyncIterator[AttachCall]:
        """Attached without shared memory, ready and active inside the context."""
        offer = self.transport.open_lane(share_memory=False)
        self.stream = AttachCall(scheduler.stub)
        await self.stream.send(hello=self.inline_hello(offer, **changes))
        welcome = await self.stream.receive("welcome")
        assert welcome.transport == pb.TRANSPORT_INLINE
        await self.stream.receive("ready")
        self.lane = self.transport.run_inline(offer.lane)
        self.transport.lane_ready(offer.lane)
        self.transport.activate(offer.lane)
        try:
            yield self.stream
        finally:
            self.stream.call.cancel()
            self.transport.close_lane(offer.lane)

    async def decide(self, confidence: float = 0.9) -> StepDecision:
        """Publish the next step and carry it to the scheduler and back."""
        self.publish(confidence)
        await self.stream.send(steps=self.lane.take())
        self.lane.deliver(await self.stream.receive("decision"))
        decision = self.transport.read(self._step_id)
        assert isinstance(decision, StepDecision), decision
        return decision

    def publish(self, confidence: float = 0.9) -> None:
        """Publish the next step."""
        self._step_id += 1
        self.transport.publish(*make_step(self._step_id, confidence))
