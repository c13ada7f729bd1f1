"""A scheduler that says what a test tells it to: for faults no sound scheduler shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_protocol.v1.scheduler_pb2_grpc import (
    SchedulerServiceServicer,
    add_SchedulerServiceServicer_to_server,
)

Script = Callable[
    [pb.Hello, Iterator[pb.AttachRequest], grpc.ServicerContext], Iterator[pb.AttachResponse]
]

THROUGHPUT = plan_pb2.PolicySpec(name="throughput")


def welcome(hello: pb.Hello, **changes: object) -> pb.AttachResponse:
    facts = {
        "protocol_version": 1,
        "scheduler_version": "9",
        "lane": hello.lane,
        "policy": THROUGHPUT,
        "transport": pb.TRANSPORT_SHARED_MEMORY,
    }
    return pb.AttachResponse(welcome=pb.Welcome(**(facts | changes)))


READY = pb.AttachResponse(ready=pb.Ready())


def sound(
    hello: pb.Hello, requests: Iterator[pb.AttachRequest], context: grpc.ServicerContext
) -> Iterator[pb.AttachResponse]:
    """Attach and stay until the executor leaves."""
    yield welcome(hello)
    yield READY
    for _ in requests:
        pass


class ScriptedScheduler(SchedulerServiceServicer):
    """Serves `script` at `path` until stopped; keeps what it was sent."""

    def __init__(self, path: Path, script: Script = sound) -> None:
        self.hellos: list[pb.Hello] = []
        self.received: list[pb.AttachRequest] = []
        self.changed = threading.Condition()
        self._script = script
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        add_SchedulerServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def Attach(self, request_iterator, context):
        hello = next(request_iterator).hello
        self.hellos.append(hello)

        def recorded() -> Iterator[pb.AttachRequest]:
            for request in request_iterator:
                with self.changed:
                    self.received.append(request)
                    self.changed.notify_all()
                yield request

        yield from self._script(hello, recorded(), context)

    def stop(self) -> None:
        """Die: every stream ends at once."""
        self._server.stop(None).wait()
