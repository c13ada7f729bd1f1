"""A peer that does not listen costs a bounded memory."""

from __future__ import annotations

from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.service.outbox import Outbox


async def test_peer_that_takes_nothing_gets_no_more_than_a_few_messages_and_the_end():
    outbox = Outbox()
    for number in range(1000):
        outbox.put(pb.AttachResponse(lane_request=pb.LaneRequest(request_id=number)))
        outbox.put_latest(pb.AttachResponse(heartbeat=pb.SchedulerHeartbeat(last_step_id=number)))
    sent = []
    while (item := await outbox.next()) is not None:
        sent.append(item)
    *ordered, newest = sent
    assert [each.lane_request.request_id for each in ordered] == list(range(64))
    assert newest.heartbeat.last_step_id == 999
