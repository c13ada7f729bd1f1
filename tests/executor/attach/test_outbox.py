"""What a session sends, in which order, and when it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from specsched_executor.attach.outbox import Outbox
from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.executor.attach.support import TIMEOUT_S
from tests.protos.builders import make_report, make_request, make_rows


def heartbeat(step_id: int) -> pb.AttachRequest:
    return pb.AttachRequest(heartbeat=pb.ExecutorHeartbeat(step_id=step_id))


@pytest.fixture
def transport(tmp_path) -> Iterator[SharedMemoryTransport]:
    it = SharedMemoryTransport(RunDir.open(tmp_path / "run"), RegionShape(8, 4))
    yield it
    it.close()


@pytest.fixture
def lane(transport) -> InlineLane:
    offer = transport.open_lane(share_memory=False)
    transport.lane_ready(offer.lane)
    return transport.run_inline(offer.lane)


def test_messages_come_in_order_and_end_after_those_put_before_closing():
    outbox = Outbox()
    outbox.put(heartbeat(1))
    outbox.put(heartbeat(2))
    outbox.close()
    assert [message.heartbeat.step_id for message in outbox.messages()] == [1, 2]


def test_peer_that_takes_nothing_gets_no_more_than_a_few_messages_and_the_end():
    outbox = Outbox()
    for step_id in range(1000):
        outbox.put(heartbeat(step_id))
        outbox.put_latest(pb.AttachRequest(cost=plan_pb2.CostModel(fingerprint=str(step_id))))
    *ordered, cost = outbox.messages()
    assert [each.heartbeat.step_id for each in ordered] == list(range(64))
    assert cost.cost.fingerprint == "999"


def test_a_waiting_reader_is_woken_by_each_kind_of_news(transport, lane):
    outbox = Outbox()
    received: list[pb.AttachRequest] = []
    arrived = threading.Semaphore(0)

    def read() -> None:
        for message in outbox.messages():
            received.append(message)
            arrived.release()

    reader = threading.Thread(target=read)
    reader.start()
    outbox.put(heartbeat(1))
    assert arrived.acquire(timeout=TIMEOUT_S)
    outbox.follow(lane)
    transport.publish(make_rows(1), make_request(3))
    assert arrived.acquire(timeout=TIMEOUT_S)
    transport.report(make_report(1))  # rings nothing: sent by and by
    assert arrived.acquire(timeout=TIMEOUT_S)
    outbox.close()
    reader.join(TIMEOUT_S)
    assert not reader.is_alive()
    kinds = [message.WhichOneof("message") for message in received]
    assert kinds == ["heartbeat", "steps", "steps"]
    assert received[1].steps.plan_request.step_id == 3
    assert [report.step_id for report in received[2].steps.reports] == [1]


def test_steps_are_looked_up_when_the_stream_takes_them(transport, lane):
    outbox = Outbox()
    outbox.follow(lane)
    outbox.put(heartbeat(1))
    messages = outbox.messages()
    transport.publish(make_rows(1), make_request(3))
    assert next(messages).WhichOneof("message") == "heartbeat"
    for step_id in (4, 5):  # the stream was busy
        transport.publish(make_rows(step_id - 2), make_request(step_id))
    assert next(messages).steps.plan_request.step_id == 5
    outbox.close()
    assert list(messages) == []
