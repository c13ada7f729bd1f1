"""An executor of the previous protocol attaches to the present scheduler, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import os

import grpc
import numpy as np
import pytest
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests import previous_protocol as previous
from tests.scheduler_service.service.support import STEEP_COST, TIMEOUT_S, Scheduler

request_of = previous.message("AttachRequest")


async def receive(call, kind: str):
    """The next message; a kind that the previous protocol does not know reads as none."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            response = await call.read()
            assert response is not grpc.aio.EOF, (await call.code(), await call.details())
            got = response.WhichOneof("message")
            if got == kind:
                return getattr(response, kind)
            assert got in ("heartbeat", None), response


async def attach(scheduler: Scheduler, hello):
    call = previous.attach_call(scheduler.channel)
    await call.write(request_of(hello=hello))
    welcome = await receive(call, "welcome")
    assert (welcome.protocol_version, welcome.lane) == (previous.VERSION, hello.lane)
    await receive(call, "ready")
    return call, welcome


def cost():
    return previous.message("CostModel").FromString(STEEP_COST.SerializeToString())


async def test_previous_executor_is_decided_for_through_shared_memory(scheduler, tmp_path):
    boot_id = os.urandom(16)
    regions = previous.PreviousRegions(tmp_path, boot_id, lane=2, epoch=9)
    handing = asyncio.create_task(asyncio.to_thread(regions.hand_over))
    hello = previous.hello(boot_id, cost=cost(), shared_memory=regions.offer(), lane=2, epoch=9)
    call, welcome = await attach(scheduler, hello)
    await handing
    assert welcome.transport == pb.TRANSPORT_SHARED_MEMORY
    for step_id in (5, 6, 7):
        regions.publish(step_id)
        async with asyncio.timeout(TIMEOUT_S):
            while (decision := regions.decision(step_id)) is None:
                await asyncio.sleep(0.001)
        assert (decision["EPOCH"], decision["SOURCE_STEP_ID"]) == (9, step_id - 2)
        assert decision["BUDGET"] == 0
    call.cancel()
    regions.close()


async def test_previous_executor_is_decided_for_on_the_stream(scheduler):
    hello = previous.hello(os.urandom(16), cost=cost(), accepts_inline=True, epoch=4)
    call, welcome = await attach(scheduler, hello)
    assert welcome.transport == pb.TRANSPORT_INLINE
    rows = np.arange(3, dtype=np.uint32)
    ones = np.ones(3, dtype=np.uint32)
    steps = previous.message("InlineSteps")(
        plan_request=previous.message("InlinePlanRequest")(
            publication=1,
            step_id=5,
            source_step_id=3,
            num_other_tokens=3,
            slot_id=rows.tobytes(),
            generation=ones.tobytes(),
            num_draft_tokens=(4 * ones).tobytes(),
            samples=b"\1\1\1",
            weight=np.ones(3, dtype=np.float32).tobytes(),
            context_tokens=rows.tobytes(),
            num_confidences=(4 * ones).tobytes(),
            confidence=np.full((3, 4), 0.99, dtype=np.float32).tobytes(),
            is_greedy=b"\0\0\0",
        )
    )
    await call.write(request_of(steps=steps))
    decision = await receive(call, "decision")
    assert (decision.step_id, decision.epoch, decision.budget) == (5, 4, 12)
    call.cancel()


async def test_what_the_previous_executor_cannot_do_is_told_and_never_sent(scheduler):
    hello = previous.hello(os.urandom(16), cost=cost(), accepts_inline=True)
    call, _ = await attach(scheduler, hello)
    answer = await scheduler.stub.Promote(pb.PromoteRequest(), timeout=TIMEOUT_S)
    (change,) = answer.executors
    assert not change.reply.done
    assert change.reply.reason == "the executor does not have the feature LANE_CONTROL"
    (attachment,) = (await scheduler.status()).attachments
    assert list(attachment.features) == []
    assert not attachment.HasField("lane_status")
    call.cancel()


@pytest.mark.parametrize("versions", [(3, 3), (3, 9)])
async def test_unknown_newer_executor_is_refused_with_both_ranges(scheduler, versions):
    hello = previous.hello(os.urandom(16), cost=cost(), accepts_inline=True)
    hello.protocol.min_version, hello.protocol.max_version = versions
    call = previous.attach_call(scheduler.channel)
    await call.write(request_of(hello=hello))
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        code, details = await call.code(), await call.details()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"{versions[0]}..{versions[1]}" in details
    assert "1..2" in details
