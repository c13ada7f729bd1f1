"""The methods of specsched.v1.SchedulerService: they convert, call and answer, nothing else."""

# Names and parameters of the methods are the service's.
# ruff: noqa: ARG002, N802

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import structlog
from specsched_protocol.enum_words import enum_word
from specsched_protocol.tcp import is_local_peer
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceServicer
from specsched_protocol.versions import PROTOCOL_RANGE, VersionRange, common_features

from specsched_scheduler.decision.wire import (
    answer_plan,
    policy_from_message,
    policy_to_message,
)
from specsched_scheduler.learning.document import read_state, write_state
from specsched_scheduler.planner import PlannerConfig
from specsched_scheduler.policies import available_policies
from specsched_scheduler.trace import StepRecorder, TraceConfig, open_recorder

from .attachment import Attachment
from .attachments import Attachments
from .errors import InvalidMessageError
from .negotiation import check_hello, negotiate_protocol
from .planning import Planning
from .transports import StepTransport, choose_transport
from .watching import DecisionWatch

__all__ = ["Identity", "SchedulerServicer"]

_log = structlog.get_logger(__name__)

_FILE_NAME_BYTES = 6
"""Of an executor's boot id in the names of its traces."""

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this scheduler process is."""

    name: str
    version: str
    scheduler_id: bytes
    started_s: float
    """time.monotonic() of the start."""


class SchedulerServicer(SchedulerServiceServicer):
    """Serves executors (Attach) and operators (the rest) over one registry of attachments."""

    def __init__(
        self,
        identity: Identity,
        attachments: Attachments,
        warmed: asyncio.Event,
        *,
        planner_config: PlannerConfig,
        trace: TraceConfig | None,
        heartbeat_s: float,
        hello_timeout_s: float,
        max_message_bytes: int,
    ) -> None:
        self._identity = identity
        self._attachments = attachments
        self._warmed = warmed
        self._planner_config = planner_config
        self._trace = trace
        self._heartbeat_s = heartbeat_s
        self._hello_timeout_s = hello_timeout_s
        self._max_message_bytes = max_message_bytes

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AttachRequest], context: _Context
    ) -> AsyncIterator[pb.AttachResponse]:
        """Negotiate, choose a transport, plan until either side ends the stream."""
        hello = await self._read_hello(request_iterator)
        version = negotiate_protocol(PROTOCOL_RANGE, VersionRange.of(hello.protocol))
        check_hello(hello)
        with self._attachments.admission():
            await self._when_warm()
            transport = await choose_transport(
                hello,
                peer_is_local=is_local_peer(context.peer()),
                max_message_bytes=self._max_message_bytes,
            )
            policy = self._attachments.policy
            learned = self._attachments.learned
            planning = Planning(
                transport,
                hello,
                policy,
                self._planner_config,
                learned,
                open_recorder=self._recorder_opener(hello),
            )
            attachment = Attachment(hello, planning, self._heartbeat_s)
            log = _log.bind(executor=hello.executor_name, lane=hello.lane, epoch=hello.epoch)
            try:
                yield self._welcome(hello, version, transport)
                with self._attachments.member(attachment):
                    yield pb.AttachResponse(ready=pb.Ready())
                    log.info("executor attached", **_log_fields(hello, transport))
                    async for response in attachment.responses(request_iterator):
                        yield response
            finally:
                await asyncio.shield(planning.close())
                log.info("executor gone", reason=attachment.end_reason)

    async def Plan(self, request: plan_pb2.PlanRequest, context: _Context) -> plan_pb2.PlanResponse:
        """Decide one step described in full; nothing is remembered."""
        await self._when_warm()
        return await asyncio.to_thread(answer_plan, request)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: _Context
    ) -> pb.GetStatusResponse:
        """Version, policy and every attachment with its counters."""
        return pb.GetStatusResponse(
            version=self._identity.version,
            scheduler_id=self._identity.scheduler_id,
            uptime_seconds=time.monotonic() - self._identity.started_s,
            policy=policy_to_message(self._attachments.policy),
            policies=available_policies(),
            protocol=PROTOCOL_RANGE.to_message(),
            attachments=[attachment.status() for attachment in self._attachments],
        )

    async def WatchDecisions(
        self, request: pb.WatchDecisionsRequest, context: _Context
    ) -> AsyncIterator[pb.WatchDecisionsResponse]:
        """A sample of the decisions of all attachments, as they are made."""
        watch = DecisionWatch(self._attachments, request.max_per_second)
        await context.send_initial_metadata(())  # tells the watcher that it misses nothing now
        async for response in watch.responses():
            yield response

    async def SetPolicy(
        self, request: pb.SetPolicyRequest, context: _Context
    ) -> pb.SetPolicyResponse:
        """Plan by another policy from the next decision on, every attachment alike."""
        policy = policy_from_message(request.policy)
        previous = self._attachments.set_policy(policy)
        _log.info("policy changed", policy=str(policy), previous=str(previous))
        return pb.SetPolicyResponse(
            policy=policy_to_message(policy), previous_policy=policy_to_message(previous)
        )

    async def Promote(self, request: pb.PromoteRequest, context: _Context) -> pb.PromoteResponse:
        """Have attached executors follow this scheduler; what became of it at each."""
        changes = await self._attachments.wish(pb.LANE_WISH_ACTIVATE, request.boot_id)
        return pb.PromoteResponse(executors=changes)

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainResponse:
        """Have attached executors follow another scheduler; what became of it at each."""
        changes = await self._attachments.wish(pb.LANE_WISH_DRAIN, request.boot_id)
        return pb.DrainResponse(executors=changes)

    def _recorder_opener(self, hello: pb.Hello) -> Callable[[], StepRecorder] | None:
        if self._trace is None:
            return None
        # Epochs count the attachments of one executor; several may have the same.
        executor = hello.boot_id[:_FILE_NAME_BYTES].hex()
        name = f"{self._identity.name}-{executor}-{hello.epoch}"
        return partial(open_recorder, self._trace, name)

    async def _when_warm(self) -> None:
        """Wait until the compiled paths may be used; NotReadyError if that is not to come."""
        await self._warmed.wait()
        self._attachments.check_open()

    async def GetLearning(
        self, request: pb.GetLearningRequest, context: _Context
    ) -> pb.GetLearningResponse:
        """What was learned of each attached executor, and from how much."""
        attachments = list(self._attachments)
        learning = await asyncio.to_thread(lambda: [each.learning() for each in attachments])
        return pb.GetLearningResponse(
            frozen=self._attachments.learned.is_frozen, attachments=learning
        )

    async def SetLearning(
        self, request: pb.SetLearningRequest, context: _Context
    ) -> pb.SetLearningResponse:
        """Keep what was learned as it is, or go on learning; every attachment alike."""
        was_frozen = self._attachments.set_frozen(is_frozen=request.frozen)
        _log.info("learning changed", frozen=request.frozen, was_frozen=was_frozen)
        return pb.SetLearningResponse(frozen=request.frozen, was_frozen=was_frozen)

    async def ExportState(
        self, request: pb.ExportStateRequest, context: _Context
    ) -> pb.ExportStateResponse:
        """Everything learned as one document."""
        return pb.ExportStateResponse(document=write_state(self._attachments.document()))

    async def ImportState(
        self, request: pb.ImportStateRequest, context: _Context
    ) -> pb.ImportStateResponse:
        """Go on from a document; one that is malformed changes nothing."""
        state = read_state(request.document)
        num_applied = self._attachments.adopt(state)
        num_entries = len(state.entries)
        _log.info("learned state imported", entries=num_entries, applied=num_applied)
        return pb.ImportStateResponse(num_entries=num_entries, num_applied=num_applied)

    async def _read_hello(self, requests: AsyncIterator[pb.AttachRequest]) -> pb.Hello:
        try:
            first = await asyncio.wait_for(anext(aiter(requests)), self._hello_timeout_s)
        except StopAsyncIteration:
            raise InvalidMessageError("the Attach stream ended before a hello") from None
        except TimeoutError:
            raise InvalidMessageError(
                f"no hello within {self._hello_timeout_s:g} s of the Attach stream's begin"
            ) from None
        kind = first.WhichOneof("message")
        if kind != "hello":
            raise InvalidMessageError(f"the first Attach message is {kind}, accepted: hello")
        return first.hello

    def _welcome(
        self, hello: pb.Hello, version: int, transport: StepTransport
    ) -> pb.AttachResponse:
        return pb.AttachResponse(
            welcome=pb.Welcome(
                protocol_version=version,
                scheduler_version=self._identity.version,
                scheduler_id=self._identity.scheduler_id,
                lane=hello.lane,
                policy=policy_to_message(self._attachments.policy),
                transport=transport.kind,
                transport_reason=transport.reason,
                features=common_features(hello.features),
            )
        )


def _log_fields(hello: pb.Hello, transport: StepTransport) -> dict[str, str]:
    kind = enum_word(pb.Transport.DESCRIPTOR, transport.kind)
    fields = {"model": hello.model.name, "transport": kind}
    return fields | ({"because": transport.reason} if transport.reason else {})
