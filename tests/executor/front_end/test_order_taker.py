"""What a front end asks for, carried out."""

from __future__ import annotations

import socket
import threading

from specsched_executor.core import DeltaSink, DuplicateIdError, GenerationRequest, SamplingParams
from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.order_taker import OrderTaker

from tests.executor.gateway.fakes import FakeEngine


class FullEngine(FakeEngine):
    """Has a request of every id already."""

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise DuplicateIdError("in use")

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def test_who_gives_up_a_duplicate_does_not_abort_the_first() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    engine, ended = FullEngine(), threading.Event()
    orders = OrderTaker(ours, engine, {}, on_message=lambda message: None, on_end=ended.set)
    orders.start()
    theirs.send(m.Submit(7, GenerationRequest("a", (1,), SamplingParams())))
    theirs.send(m.Abort(7, "a"))
    theirs.send(m.AbortElsewhere("b"))
    (packed,) = theirs.receive()
    ((key, delta),) = m.Deltas.unpacked(packed).others
    theirs.close()
    assert ended.wait(20)
    assert (key, delta.finish_reason) == (7, "duplicate")
    assert engine.aborted == ["b"]
    orders.close()
