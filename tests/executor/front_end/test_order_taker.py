"""What a front end asks for, carried out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from specsched_executor.core import DeltaSink, DuplicateIdError, GenerationRequest, SamplingParams
from specsched_executor.front_end import messages as m
from specsched_executor.front_end.channel import Channel
from specsched_executor.front_end.order_taker import OrderTaker

from tests.executor.gateway.fakes import FakeEngine

REQUEST = GenerationRequest("a", (1,), SamplingParams())


class OtherFrontEnd:
    """Of the same engine, with the id of a request that was submitted there."""

    def __init__(self, engine: FakeEngine) -> None:
        engine.submit(REQUEST, self)

    def __call__(self, delta: object) -> None:
        raise AssertionError("nobody asked for its request's end")


class FullEngine(FakeEngine):
    """Has a request of every id already."""

    is_full = True

    def submit(self, request: GenerationRequest, sink: DeltaSink) -> None:
        if self.is_full and not isinstance(sink, OtherFrontEnd):
            raise DuplicateIdError("in use")
        super().submit(request, sink)


@pytest.fixture
def engine() -> FullEngine:
    return FullEngine()


class Ends:
    """An order taker and the front end's end of its channel."""

    def __init__(self, engine: FakeEngine) -> None:
        ours, self.theirs = map(Channel, socket.socketpair())
        self.is_closed = False
        self.ended = threading.Event()
        questions = {m.Topic.STATS: engine.stats, m.Topic.SCHEDULERS: _raise}
        self._orders = OrderTaker(ours, engine, questions, on_message=_raise, on_end=self.ended.set)
        self._orders.start()

    def delta(self) -> tuple[int, str | None]:
        """Key and reason of the next one."""
        (packed,) = self.theirs.receive()
        ((key, delta),) = m.Deltas.unpacked(packed).others
        return key, delta.finish_reason

    def close(self) -> None:
        """All that was sent is carried out afterwards."""
        self.is_closed = True
        self.theirs.close()
        assert self.ended.wait(60)
        self._orders.close()


def _raise(*_: object) -> None:
    raise LookupError("out of order")


@pytest.fixture
def ends(engine: FullEngine) -> Iterator[Ends]:
    them = Ends(engine)
    yield them
    if not them.is_closed:
        them.close()


def test_who_gives_up_a_duplicate_does_not_abort_the_first(engine: FullEngine, ends: Ends) -> None:
    OtherFrontEnd(engine)
    ends.theirs.send(m.Submit(7, REQUEST))
    ends.theirs.send(m.Abort(7, "a"))
    assert ends.delta() == (7, "duplicate")
    ends.close()
    assert engine.aborted == []


def test_a_late_abort_does_not_end_a_request_that_has_the_id_since(
    engine: FullEngine, ends: Ends
) -> None:
    engine.is_full = False
    ends.theirs.send(m.Submit(7, REQUEST))
    ends.theirs.send(m.Submit(8, GenerationRequest("b", (1,), SamplingParams())))
    ends.theirs.send(m.Abort(8, "b"))
    assert ends.delta() == (8, "abort")
    engine.emit("a", [5], finish_reason="length")
    OtherFrontEnd(engine)
    ends.theirs.send(m.Abort(7, "a"))
    ends.close()
    assert engine.aborted == ["b"]


def test_an_abort_from_elsewhere_ends_whoever_has_the_id(engine: FullEngine, ends: Ends) -> None:
    engine.is_full = False
    ends.theirs.send(m.Submit(7, REQUEST))
    ends.theirs.send(m.AbortElsewhere("a"))
    assert ends.delta() == (7, "abort")
    assert engine.aborted == ["a"]


def test_a_question_that_fails_is_told_and_orders_go_on(engine: FullEngine, ends: Ends) -> None:
    ends.theirs.send(m.Ask(1, m.Topic.SCHEDULERS))
    assert ends.theirs.receive() == [m.NotAnswered(1, "LookupError: out of order")]
    ends.theirs.send(m.Submit(7, REQUEST))
    assert ends.delta() == (7, "duplicate")


def test_a_fault_that_leaves_nobody_to_take_orders_is_told(ends: Ends) -> None:
    ends.theirs.send(m.Metered({}))
    assert ends.ended.wait(60)
