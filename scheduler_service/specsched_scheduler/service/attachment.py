"""One attached executor, from its Hello to the end of its stream."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import structlog
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.wire import policy_to_message
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.learning.wire import calibration_to_message
from specsched_scheduler.policies import BuiltPolicy

from .decisions import DecisionSender
from .errors import InvalidMessageError
from .lane_control import LaneControl
from .learning_report import attachment_learning
from .outbox import Outbox
from .planning import Planning

__all__ = ["Attachment"]

_log = structlog.get_logger(__name__)


class Attachment:
    """Keeps one executor's planner and its stream together. Lives on the server's event loop.

    slot: its number among those attached.
    """

    def __init__(self, hello: pb.Hello, planning: Planning, heartbeat_s: float) -> None:
        self.hello = hello
        self.planning = planning
        self._cost = hello.cost
        self._heartbeat_s = heartbeat_s
        self._outbox = Outbox()
        self.lane_control = LaneControl(hello, self._outbox)
        self._last_heard = time.monotonic()
        self._heard = pb.ExecutorHeartbeat()
        self._handing_over: dict[str, asyncio.Task[None]] = {}
        self.end_reason = "the stream ended"
        self.slot = 0
        # Who cannot tell whom it follows has one scheduler.
        can_tell = pb.FEATURE_LANE_CONTROL in self.lane_control.features
        planning.telemetry.is_followed = not can_tell

    def end(self, reason: str) -> None:
        """Have `responses` return once what was queued before is sent."""
        self.end_reason = reason
        self._outbox.end()
        self.lane_control.close(f"the executor is gone: {reason}")

    def follow(self, policy: BuiltPolicy) -> None:
        """Plan by `policy` from the next decision on, and tell the executor."""
        self.planning.set_policy(policy)
        changed = pb.PolicyChanged(policy=policy_to_message(policy))
        self._outbox.put_latest(pb.AttachResponse(policy_changed=changed))

    async def responses(
        self, requests: AsyncIterator[pb.AttachRequest]
    ) -> AsyncIterator[pb.AttachResponse]:
        """What to send, heartbeats included, until either side ends the stream.

        Raises InvalidMessageError for a message that has no place here.
        """
        reader = asyncio.create_task(self._read(requests))
        self._learn()
        decisions = DecisionSender(self.planning, self._outbox.put)
        try:
            async for response in self._sent():
                yield response
            if reader.done():
                reader.result()  # raises what the reader raised
        finally:
            decisions.close()
            for task in (reader, *self._handing_over.values()):
                task.cancel()

    async def _sent(self) -> AsyncIterator[pb.AttachResponse]:
        while True:
            try:
                item = await asyncio.wait_for(self._outbox.next(), self._heartbeat_s)
            except TimeoutError:
                yield self._heartbeat()
                continue
            if item is None:
                return
            response = item.take() if isinstance(item, DecisionSender) else item
            if response is not None:
                yield response

    def status(self) -> pb.AttachmentStatus:
        """What GetStatus tells of it."""
        heard = self._heard
        return pb.AttachmentStatus(
            boot_id=self.hello.boot_id,
            executor_name=self.hello.executor_name,
            lane=self.hello.lane,
            epoch=self.hello.epoch,
            transport=self.planning.transport.kind,
            model=self.hello.model,
            model_state=self.planning.model_state,
            counters=self.planning.counters(),
            executor_step_id=heard.step_id,
            plan_outcomes=heard.plan_outcomes if heard.HasField("plan_outcomes") else None,
            seconds_since_heard=time.monotonic() - self._last_heard,
            lane_status=self.lane_control.status,
            features=self.lane_control.features,
            cost_disturbed=self._cost.disturbed,
            policy_failures=self.planning.policy_failures(),
        )

    def learning(self) -> pb.AttachmentLearning:
        """What GetLearning tells of it; from any thread, may wait for a fit."""
        planning, hello = self.planning, self.hello
        return attachment_learning(planning, hello)

    def _heartbeat(self) -> pb.AttachResponse:
        heartbeat = pb.SchedulerHeartbeat(
            last_step_id=self.planning.last_step_id,
            policy_failures=self.planning.policy_failures(),
        )
        return pb.AttachResponse(heartbeat=heartbeat)

    def _on_feature(self, request: pb.AttachRequest) -> None:
        match request.WhichOneof("message"):
            case "lane_status":
                self.lane_control.on_status(request.lane_status)
                is_followed = request.lane_status.role == pb.LANE_ROLE_ACTIVE
                self.planning.telemetry.is_followed = is_followed
            case "lane_reply":
                self.lane_control.on_reply(request.lane_reply)
            case "state_query":
                self._hand_over("state_query", self._tell_state)
            case "learned_state":
                document = request.learned_state.document
                self._hand_over("learned_state", partial(self._take_state, document))

    def _hand_over(self, kind: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, which may wait for a fit, while steps are read. One that is asked for again
        meanwhile has the same answer."""
        if kind in self._handing_over:
            return

        async def run() -> None:
            try:
                await work()
            except Exception:  # noqa: BLE001 - the executor goes on without an answer
                _log.exception("hand-over failed", kind=kind)
            finally:
                del self._handing_over[kind]

        self._handing_over[kind] = asyncio.create_task(run())

    async def _tell_state(self) -> None:
        document = await asyncio.to_thread(self.planning.learned_state)
        learned = pb.LearnedState(document=document)
        self._outbox.put_latest(pb.AttachResponse(learned_state=learned))

    async def _take_state(self, document: str) -> None:
        refusal = ""
        try:
            await asyncio.to_thread(self.planning.take_state, document)
        except StateError as error:
            refusal = str(error)
        self._outbox.put_latest(pb.AttachResponse(state_taken=pb.StateTaken(refusal=refusal)))

    def _accept(self, steps: pb.InlineSteps) -> None:
        feed = self.planning.transport.feed
        if feed is None:
            raise InvalidMessageError("steps on a stream that was welcomed with shared memory")
        feed.accept(steps)

    def _learn(self) -> None:
        loop = asyncio.get_running_loop()

        def tell(calibration: Calibration) -> None:
            response = pb.AttachResponse(calibration=calibration_to_message(calibration))
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is there to tell
                loop.call_soon_threadsafe(self._outbox.put_latest, response)

        self.planning.learning.on_calibration = tell
        self.planning.learning.start()

    async def _read(self, requests: AsyncIterator[pb.AttachRequest]) -> None:
        reason = "the executor ended the stream"
        try:
            async for request in requests:
                self._last_heard = time.monotonic()
                match request.WhichOneof("message"):
                    case "steps":
                        self._accept(request.steps)
                    case "cost":
                        self._cost = request.cost
                        self.planning.set_cost(request.cost)
                    case "heartbeat":
                        self._heard = request.heartbeat
                    case "detach":
                        reason = f"the executor detached: {request.detach.reason}"
                        break
                    case "hello":
                        raise InvalidMessageError("a second hello on one Attach stream")
                    case _:  # of a feature, or of a later protocol
                        self._on_feature(request)
        finally:
            self.end(reason)
