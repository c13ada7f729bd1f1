"""Steps on the Attach stream: the same decisions, checks and counters as through shared memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import grpc
import pytest
from specsched_protocol.inline import inline_message_bytes
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.service.errors import PeerRefusedError
from specsched_scheduler.service.transports import choose_transport
from structlog.testing import capture_logs

from tests.protos.builders import make_report
from tests.scheduler_service.service.inline_executor import InlineExecutor
from tests.scheduler_service.service.support import (
    MAX_DRAFT_TOKENS,
    NUM_REQUESTS,
    TIMEOUT_S,
    AttachCall,
    Scheduler,
    SharedMemoryExecutor,
)

PLENTY = 4 << 20


@pytest.fixture
def inline(run_dir) -> Iterator[InlineExecutor]:
    with InlineExecutor(run_dir) as it:
        yield it


async def counters_of(scheduler: Scheduler) -> pb.PlannerCounters:
    (attachment,) = (await scheduler.status()).attachments
    return attachment.counters


async def until_counted(scheduler: Scheduler, name: str, number: int) -> pb.PlannerCounters:
    async with asyncio.timeout(TIMEOUT_S):
        while getattr(counters := await counters_of(scheduler), name) != number:
            await asyncio.sleep(0.01)
    return counters


async def test_decisions_equal_those_through_shared_memory(scheduler, run_dir, inline):
    confidences = (0.99, 0.7, 0.5, 0.3, 0.01, float("nan"), 0.9)
    with SharedMemoryExecutor(run_dir) as shared:
        async with shared.attached(scheduler):
            expected = [await shared.decide(each) for each in confidences]
    async with inline.attached(scheduler):
        got = [await inline.decide(each) for each in confidences]
    times = {"decided_ns": 0, "epoch": 0}
    assert [dataclasses.replace(each, **times) for each in got] == [
        dataclasses.replace(each, **times) for each in expected
    ]
    assert len({each.budget for each in got}) > 2, "the cases must tell decisions apart"
    assert any(each.num_repaired_confidences for each in got)


async def test_status_and_log_say_which_transport_and_why(start, inline):
    with capture_logs() as logs:
        scheduler = await start()
        async with inline.attached(scheduler):
            (attachment,) = (await scheduler.status()).attachments
    assert attachment.transport == pb.TRANSPORT_INLINE
    (log,) = [log for log in logs if log["event"] == "executor attached"]
    assert log["transport"] == "inline"
    assert "the executor offers none" in log["because"]


async def test_counters_are_those_of_the_planner(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        await inline.decide(float("nan"))
        for _ in range(3):  # two are overtaken before they are sent
            inline.publish()
        inline.transport.report(make_report(2))
        await stream.send(steps=inline.lane.take())
        assert (await stream.receive("decision")).step_id == 6
        counters = await until_counted(scheduler, "num_reports", 1)
    assert (counters.num_decisions, counters.num_missed_requests) == (2, 2)
    assert counters.num_repaired_confidences == NUM_REQUESTS * MAX_DRAFT_TOKENS
    assert (counters.num_invalid_requests, counters.num_lost_reports) == (0, 0)
    assert counters.plan_us_p99 >= counters.plan_us_p50 > 0


async def test_policy_changes_reach_the_next_decision(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        await scheduler.set_policy("fixed", k=2)
        await stream.receive("policy_changed")
        decision = await inline.decide()
        assert (decision.budget, decision.max_verify_len) == (2 * NUM_REQUESTS, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"slot_id": b""},
        {"slot_id": b"\xff" * 4 * NUM_REQUESTS},
        {"slot_id": bytes(4 * 1000)},
        {"num_draft_tokens": b"\xff" * 4 * NUM_REQUESTS},
        {"num_confidences": b"\xff" * 4 * NUM_REQUESTS},
        {"confidence": b"\x00" * 5},
        {"weight": b"\xff" * 4 * NUM_REQUESTS},
        {"samples": b""},
        {"step_id": 1 << 63},
        {"source_step_id": 1 << 40},
        {"num_prefill_tokens": 99},
        {"num_other_tokens": (1 << 32) - 1, "num_prefill_tokens": 0},
        {"publication": 0},
        {"publication": (1 << 64) - 1},
    ],
)
async def test_impossible_requests_are_counted_and_nothing_else_happens(scheduler, inline, changes):
    async with inline.attached(scheduler) as stream:
        await inline.decide()
        inline.publish()
        steps = inline.lane.take()
        for name, value in changes.items():
            setattr(steps.plan_request, name, value)
        await stream.send(steps=steps)
        counters = await until_counted(scheduler, "num_invalid_requests", 1)
        assert counters.num_decisions == 1
        assert (await inline.decide()).budget > 0, "the next sound one is decided"


async def test_a_request_sent_again_is_not_decided_again(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        inline.publish()
        steps = inline.lane.take()
        for _ in range(2):
            await stream.send(steps=steps)
        counters = await until_counted(scheduler, "num_invalid_requests", 1)
        assert counters.num_decisions == 1


async def test_impossible_reports_are_counted_as_lost(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        inline.transport.report(make_report(1))
        steps = inline.lane.take()
        steps.reports[0].num_accepted = b"\xff" * len(steps.reports[0].num_accepted)
        await stream.send(steps=steps)
        assert (await until_counted(scheduler, "num_lost_reports", 1)).num_reports == 0


async def test_steps_on_a_stream_with_shared_memory_end_it(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await stream.send(steps=pb.InlineSteps())
        code, details = await stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "steps on a stream that was welcomed with shared memory"


async def test_steps_are_decided_while_what_was_learned_is_waited_for(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        (attachment,) = scheduler.server._attachments
        with attachment.planning.learning._lock:  # as a fit has it
            for _ in range(2):
                await stream.send(state_query=pb.StateQuery())
            assert (await inline.decide()).budget > 0
        learned = await stream.receive("learned_state")
        await stream.send(learned_state=learned)
        assert (await stream.receive("state_taken")).refusal == ""


async def test_a_burst_of_requests_is_answered_by_its_newest(scheduler, inline):
    async with inline.attached(scheduler) as stream:
        burst = []
        for _ in range(50):
            inline.publish()
            burst.append(inline.lane.take())
        for steps in burst:
            await stream.send(steps=steps)
        last_step_id = burst[-1].plan_request.step_id
        steps_decided = []
        while not steps_decided or steps_decided[-1] != last_step_id:
            steps_decided.append((await stream.receive("decision")).step_id)
        assert steps_decided == sorted(set(steps_decided)), "in order, none twice"


# ===================== The choice =====================


async def test_descriptors_that_cannot_be_fetched_lead_to_the_stream(scheduler, run_dir):
    with InlineExecutor(run_dir) as it:
        offer = it.transport.open_lane().shared_memory
        offer.handoff_socket_path = "/nowhere/handoff.sock"
        stream = AttachCall(scheduler.stub)
        lane = it.transport.open_lane(share_memory=False)
        await stream.send(hello=it.inline_hello(lane, shared_memory=offer))
        welcome = await stream.receive("welcome")
        await stream.receive("ready")
        stream.call.cancel()
    assert welcome.transport == pb.TRANSPORT_INLINE
    assert "no hand-over at /nowhere/handoff.sock" in welcome.transport_reason


async def test_shared_memory_is_preferred_where_both_are_possible(scheduler, executor):
    offer = executor.transport.open_lane()
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(offer, accepts_inline=True))
    welcome = await stream.receive("welcome")
    await stream.receive("ready")
    stream.call.cancel()
    assert welcome.transport == pb.TRANSPORT_SHARED_MEMORY
    assert welcome.transport_reason == ""


async def test_the_offer_of_another_machine_is_left_alone(executor):
    offer = executor.transport.open_lane()
    hello = executor.hello(offer, accepts_inline=True)
    chosen = await choose_transport(hello, peer_is_local=False, max_message_bytes=PLENTY)
    assert chosen.kind == pb.TRANSPORT_INLINE
    assert "another machine" in chosen.reason
    # Nobody used the nonce up.
    chosen = await choose_transport(hello, peer_is_local=True, max_message_bytes=PLENTY)
    assert chosen.kind == pb.TRANSPORT_SHARED_MEMORY


async def test_steps_too_large_for_a_message_are_refused_with_both_sizes(inline):
    hello = inline.inline_hello(inline.transport.open_lane(share_memory=False))
    needed = inline_message_bytes(NUM_REQUESTS, MAX_DRAFT_TOKENS)
    chosen = await choose_transport(hello, peer_is_local=True, max_message_bytes=needed)
    assert chosen.kind == pb.TRANSPORT_INLINE
    with pytest.raises(PeerRefusedError, match=rf"{needed} bytes .* accepted: {needed - 1} "):
        await choose_transport(hello, peer_is_local=True, max_message_bytes=needed - 1)


async def test_neither_transport_is_refused_with_both_reasons(scheduler, inline):
    stream = AttachCall(scheduler.stub)
    lane = inline.transport.open_lane(share_memory=False)
    await stream.send(hello=inline.inline_hello(lane, accepts_inline=False))
    code, details = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "hello.shared_memory is absent" in details
    assert "hello.accepts_inline is false" in details
