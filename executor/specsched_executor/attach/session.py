"""One Attach stream, from Hello to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import grpc
from specsched_protocol.shm import RegionError
from specsched_protocol.unreachable import status_reason
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub
from specsched_protocol.versions import FEATURES, PROTOCOL_RANGE, common_features

from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lanes import LaneError, LaneOffer

from .endpoints import SchedulerEndpoint
from .outbox import Outbox
from .seams import AttachConfig, ExecutorFacts

__all__ = ["AttachSession", "SessionError", "SessionListener"]


class SessionError(Exception):
    """The stream ended, or never came to be; the text says why.

    in_order: the scheduler ended it, having done what it had to.
    """

    def __init__(self, reason: str, *, in_order: bool = False) -> None:
        super().__init__(reason)
        self.in_order = in_order


class SessionListener(Protocol):
    """Told of what happens on a stream, on the session's thread, which must not be kept."""

    def on_ready(self, session: AttachSession) -> None:
        """The scheduler waits for plan requests."""

    def on_policy(self, session: AttachSession) -> None:
        """It plans by another policy."""

    def on_calibration(self, session: AttachSession, calibration: pb.Calibration) -> None:
        """It wants drafts ranked by this; raises ValueError for what is no calibration."""

    def on_learned_state(self, session: AttachSession, document: str) -> None:
        """It tells what it learned, having been asked."""

    def on_state_taken(self, session: AttachSession, refusal: str) -> None:
        """It goes on from what another learned, or says why not."""

    def on_lane_request(self, session: AttachSession, request: pb.LaneRequest) -> None:
        """It wishes to be followed, or not to be."""


class AttachSession:
    """Speaks with one scheduler. `run` belongs to one thread, the rest to any.

    run_inline: called once and only if the steps are to travel on the stream.
    """

    def __init__(
        self,
        endpoint: SchedulerEndpoint,
        facts: ExecutorFacts,
        offer: LaneOffer,
        config: AttachConfig,
        run_inline: Callable[[], InlineLane],
    ) -> None:
        self.endpoint = endpoint
        self.offer = offer
        self.welcome: pb.Welcome | None = None
        self.policy = plan_pb2.PolicySpec()
        self.heard = pb.SchedulerHeartbeat()
        self.ready = False
        self.last_heard_ns = 0
        self._facts = facts
        self._config = config
        self._run_inline = run_inline
        self._inline: InlineLane | None = None
        self._outbox = Outbox()
        self._cancel_call: Callable[[], object] | None = None
        self._cancel_reason: str | None = None

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler, as its endpoint has it."""
        return self.endpoint.name

    def has(self, feature: pb.Feature.ValueType) -> bool:
        """Whether both ends use it."""
        return self.welcome is not None and feature in common_features(self.welcome.features)

    def run(self, listener: SessionListener) -> None:
        """Attach and stay until the stream ends; always leaves by SessionError."""
        options = [
            ("grpc.max_receive_message_length", self._config.max_message_bytes),
            # No connection state inherited from a predecessor at the same path.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        self._outbox.put(pb.AttachRequest(hello=self._hello()))
        timeout_s = self._config.handshake_timeout_ms / 1e3
        timer = threading.Timer(
            timeout_s, self.cancel, [f"it was not ready within {timeout_s:g} s"]
        )
        timer.daemon = True
        with self._connect(options) as channel:
            call = SchedulerServiceStub(channel).Attach(self._outbox.messages())
            self._cancel_call = call.cancel
            timer.start()
            try:
                for response in call:
                    self.last_heard_ns = time.monotonic_ns()
                    self._handle(response, listener)
                    if self.ready:
                        timer.cancel()
            except grpc.RpcError as error:
                # It is the call itself. With what it and this session know of each other, either
                # would keep its descriptors until garbage is collected.
                error.with_traceback(None)
                raise SessionError(self._cancel_reason or _reason(error)) from None
            finally:
                timer.cancel()
                self._outbox.close()
                call.cancel()
                self._cancel_call = None
        reason = self._cancel_reason  # whose stream was ended here may end it before the call is
        raise SessionError(reason or "it ended the stream", in_order=reason is None)

    def _connect(self, options: list[tuple[str, int]]) -> grpc.Channel:
        try:
            return self.endpoint.connect(options)
        except OSError as error:
            raise SessionError(f"cannot read the certificates: {error}") from error

    def send_cost(self, cost: plan_pb2.CostModel) -> None:
        """Tell the scheduler of a new cost profile."""
        self._outbox.put_latest(pb.AttachRequest(cost=cost))

    def send_heartbeat(self, heartbeat: pb.ExecutorHeartbeat) -> None:
        """Tell the scheduler how far the executor is."""
        self._outbox.put_latest(pb.AttachRequest(heartbeat=heartbeat))

    def send_lane_status(self, status: pb.LaneStatus) -> None:
        """Tell the scheduler whether it is followed; nothing where it would not understand."""
        if self.has(pb.FEATURE_LANE_CONTROL):
            self._outbox.put_latest(pb.AttachRequest(lane_status=status))

    def ask_state(self) -> None:
        """Ask what the scheduler learned."""
        self._outbox.put_latest(pb.AttachRequest(state_query=pb.StateQuery()))

    def send_state(self, document: str) -> None:
        """Tell what another scheduler learned."""
        learned = pb.LearnedState(document=document)
        self._outbox.put_latest(pb.AttachRequest(learned_state=learned))

    def send_lane_reply(self, reply: pb.LaneReply) -> None:
        """Answer a LaneRequest."""
        self._outbox.put(pb.AttachRequest(lane_reply=reply))

    def detach(self, reason: str) -> None:
        """Leave in good order: the scheduler releases the lane and ends the stream."""
        self._outbox.put(pb.AttachRequest(detach=pb.Detach(reason=reason)))
        self._outbox.close()

    def cancel(self, reason: str) -> None:
        """End the stream at once; `run` leaves with a SessionError that says `reason`."""
        self._cancel_reason = reason
        self._outbox.close()
        if self._cancel_call is not None:
            self._cancel_call()

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            protocol=PROTOCOL_RANGE.to_message(),
            boot_id=self._facts.boot_id,
            executor_name=self._facts.name,
            executor_version=self._facts.version,
            model=self._facts.model,
            capture_sizes=self._facts.capture_sizes,
            cost=self._facts.cost,
            shared_memory=self.offer.shared_memory,
            lane=self.offer.lane,
            epoch=self.offer.epoch,
            accepts_inline=self._config.accepts_inline,
            features=FEATURES,
            calibration=self._facts.calibration,
        )

    def _handle(self, response: pb.AttachResponse, listener: SessionListener) -> None:
        match response.WhichOneof("message"):
            case "welcome":
                self._take_welcome(response.welcome)
            case "ready":
                if self.welcome is None or self.ready:
                    raise SessionError("it sent Ready out of turn")
                self.ready = True
                if self.welcome.transport == pb.TRANSPORT_INLINE:
                    self._start_inline()
                listener.on_ready(self)
            case "decision":
                if self._inline is None:
                    raise SessionError("it sent a decision, but its transport is shared memory")
                self._inline.deliver(response.decision)
            case "policy_changed":
                self.policy = response.policy_changed.policy
                listener.on_policy(self)
            case _:
                self._handle_feature(response, listener)

    def _handle_feature(self, response: pb.AttachResponse, listener: SessionListener) -> None:
        match response.WhichOneof("message"):
            case "calibration":
                self._take_calibration(response.calibration, listener)
            case "learned_state":
                listener.on_learned_state(self, response.learned_state.document)
            case "state_taken":
                listener.on_state_taken(self, response.state_taken.refusal)
            case "lane_request":
                listener.on_lane_request(self, response.lane_request)
            case "heartbeat":
                self.heard = response.heartbeat
            case _:  # a message of a later protocol
                pass

    def _take_calibration(self, calibration: pb.Calibration, listener: SessionListener) -> None:
        if not self.ready:
            raise SessionError("it sent a calibration before Ready")
        try:
            listener.on_calibration(self, calibration)
        except ValueError as error:
            raise SessionError(f"it sent a calibration that is none: {error}") from error

    def _start_inline(self) -> None:
        try:
            self._inline = self._run_inline()
        except (LaneError, RegionError, OSError) as error:
            raise SessionError(f"its steps cannot travel on the stream: {error}") from error
        self._outbox.follow(self._inline)

    def _take_welcome(self, welcome: pb.Welcome) -> None:
        if self.welcome is not None:
            raise SessionError("it sent a second Welcome")
        if welcome.protocol_version not in PROTOCOL_RANGE:
            raise SessionError(
                f"it chose protocol version {welcome.protocol_version}, "
                f"this executor speaks {PROTOCOL_RANGE}"
            )
        if welcome.lane != self.offer.lane:
            raise SessionError(f"it took lane {welcome.lane}, offered was {self.offer.lane}")
        if welcome.transport not in self._offered_transports():
            names = [pb.Transport.Name(each) for each in self._offered_transports()]
            raise SessionError(
                f"it chose {_transport_name(welcome.transport)}, offered: {', '.join(names)}"
            )
        self.welcome = welcome
        self.policy = welcome.policy

    def _offered_transports(self) -> list[pb.Transport.ValueType]:
        offered = []
        if self.offer.shared_memory is not None:
            offered.append(pb.TRANSPORT_SHARED_MEMORY)
        if self._config.accepts_inline:
            offered.append(pb.TRANSPORT_INLINE)
        return offered


def _transport_name(transport: pb.Transport.ValueType) -> str:
    known = pb.Transport.DESCRIPTOR.values_by_number.get(transport)
    return str(transport) if known is None else str(known.name)


def _reason(error: grpc.RpcError) -> str:
    # Every RpcError raised by a call is the call itself; the stubs do not say so.
    if not isinstance(error, grpc.Call):
        return str(error)
    return status_reason(error.code(), error.details())
