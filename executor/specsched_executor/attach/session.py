"""One Attach stream, from Hello to its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub

from specsched_executor.transport.lanes import LaneOffer

from .seams import AttachConfig, ExecutorFacts

__all__ = ["PROTOCOL_RANGE", "AttachSession", "SessionError"]

PROTOCOL_RANGE = pb.ProtocolRange(min_version=1, max_version=1)


class SessionError(Exception):
    """The stream ended, or never came to be; the text says why."""


SessionCallback = Callable[["AttachSession"], None]


class AttachSession:
    """Speaks with the scheduler at one socket. `run` belongs to one thread, the rest to any."""

    def __init__(
        self, socket_path: Path, facts: ExecutorFacts, offer: LaneOffer, config: AttachConfig
    ) -> None:
        self.socket_path = socket_path
        self.offer = offer
        self.welcome: pb.Welcome | None = None
        self.policy = plan_pb2.PolicySpec()
        self.ready = False
        self._facts = facts
        self._config = config
        self._outbox: queue.SimpleQueue[pb.AttachRequest | None] = queue.SimpleQueue()
        self._cancel_call: Callable[[], object] | None = None
        self._cancel_reason: str | None = None

    @property
    def scheduler_name(self) -> str:
        """Name of the scheduler, which its socket carries."""
        return self.socket_path.stem

    def run(self, on_ready: SessionCallback, on_policy: SessionCallback) -> None:
        """Attach and stay until the stream ends; always leaves by SessionError."""
        options = [
            ("grpc.max_receive_message_length", self._config.max_message_bytes),
            # No connection state inherited from a predecessor at the same path.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        self._outbox.put(pb.AttachRequest(hello=self._hello()))
        timer = threading.Timer(
            self._config.handshake_timeout_ms / 1e3, self.cancel, ["it was not ready in time"]
        )
        timer.daemon = True
        with grpc.insecure_channel(f"unix:{self.socket_path}", options=options) as channel:
            call = SchedulerServiceStub(channel).Attach(iter(self._outbox.get, None))
            self._cancel_call = call.cancel
            timer.start()
            try:
                for response in call:
                    self._handle(response, on_ready, on_policy)
                    if self.ready:
                        timer.cancel()
            except grpc.RpcError as error:
                raise SessionError(self._cancel_reason or _reason(error)) from None
            finally:
                timer.cancel()
                self._outbox.put(None)
                call.cancel()
        raise SessionError("it ended the stream")

    def send_cost(self, cost: plan_pb2.CostModel) -> None:
        """Tell the scheduler of a new cost profile."""
        self._outbox.put(pb.AttachRequest(cost=cost))

    def send_heartbeat(self, step_id: int) -> None:
        """Tell the scheduler how far the executor is."""
        self._outbox.put(pb.AttachRequest(heartbeat=pb.ExecutorHeartbeat(step_id=step_id)))

    def detach(self, reason: str) -> None:
        """Leave in good order: the scheduler releases the lane and ends the stream."""
        self._outbox.put(pb.AttachRequest(detach=pb.Detach(reason=reason)))
        self._outbox.put(None)

    def cancel(self, reason: str) -> None:
        """End the stream at once; `run` leaves with a SessionError that says `reason`."""
        self._cancel_reason = reason
        self._outbox.put(None)
        if self._cancel_call is not None:
            self._cancel_call()

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            protocol=PROTOCOL_RANGE,
            boot_id=self._facts.boot_id,
            executor_name=self._facts.name,
            executor_version=self._facts.version,
            model=self._facts.model,
            capture_sizes=self._facts.capture_sizes,
            cost=self._facts.cost,
            shared_memory=self.offer.shared_memory,
            lane=self.offer.lane,
            epoch=self.offer.epoch,
        )

    def _handle(
        self, response: pb.AttachResponse, on_ready: SessionCallback, on_policy: SessionCallback
    ) -> None:
        match response.WhichOneof("message"):
            case "welcome":
                self._take_welcome(response.welcome)
            case "ready":
                if self.welcome is None or self.ready:
                    raise SessionError("it sent Ready out of turn")
                self.ready = True
                on_ready(self)
            case "policy_changed":
                self.policy = response.policy_changed.policy
                on_policy(self)
            case _:  # a heartbeat, or a message of a later protocol
                pass

    def _take_welcome(self, welcome: pb.Welcome) -> None:
        if self.welcome is not None:
            raise SessionError("it sent a second Welcome")
        ours = PROTOCOL_RANGE
        if not ours.min_version <= welcome.protocol_version <= ours.max_version:
            raise SessionError(
                f"it chose protocol version {welcome.protocol_version}, "
                f"this executor speaks {ours.min_version}..{ours.max_version}"
            )
        if welcome.lane != self.offer.lane:
            raise SessionError(f"it took lane {welcome.lane}, offered was {self.offer.lane}")
        self.welcome = welcome
        self.policy = welcome.policy


def _reason(error: grpc.RpcError) -> str:
    # Every RpcError raised by a call is the call itself; the stubs do not say so.
    if not isinstance(error, grpc.Call):
        return str(error)
    return f"{error.code().name}: {error.details()}"
