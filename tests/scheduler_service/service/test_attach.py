"""Attach over a real socket with real shared memory: handshake, plans, policies, refusals, ends."""

from __future__ import annotations

import asyncio
import re

import grpc
import pytest
from specsched_protocol.plan import FallbackReason
from specsched_protocol.shm import ABI_VERSION
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.scheduler_service.service.support import (
    MAX_DRAFT_TOKENS,
    NUM_REQUESTS,
    TIMEOUT_S,
    AttachCall,
    SharedMemoryExecutor,
)

ALL_DRAFTS = NUM_REQUESTS * MAX_DRAFT_TOKENS


async def _until(condition) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_attached_scheduler_decides_steps(scheduler, executor):
    async with executor.attached(scheduler):
        sure, unsure = await executor.decide(0.99), await executor.decide(0.01)
        assert sure.budget > unsure.budget == 0
        (attachment,) = (await scheduler.status()).attachments
    assert attachment.boot_id == executor.transport.boot_id
    assert attachment.transport == pb.TRANSPORT_SHARED_MEMORY
    assert attachment.model_state == plan_pb2.MODEL_STATE_OK
    assert attachment.counters.num_decisions == 2
    assert attachment.counters.plan_us_p99 >= attachment.counters.plan_us_p50 > 0


async def test_policy_changes_between_two_decisions_for_every_executor(scheduler, run_dir):
    with SharedMemoryExecutor(run_dir) as one, SharedMemoryExecutor(run_dir) as other:
        async with one.attached(scheduler) as stream, other.attached(scheduler) as other_stream:
            await scheduler.set_policy("fixed", k=2)
            for it, attach in ((one, stream), (other, other_stream)):
                changed = await attach.receive("policy_changed")
                assert dict(changed.policy.parameters) == {"k": 2}
                decision = await it.decide()
                assert (decision.budget, decision.max_verify_len) == (2 * NUM_REQUESTS, 2)
            await scheduler.set_policy("off")
            assert (await one.decide()).budget == 0


async def test_policy_beyond_every_attached_executor_is_refused(scheduler, run_dir, executor):
    await scheduler.set_policy("fixed", k=MAX_DRAFT_TOKENS + 1)  # nobody is there to judge it by
    async with executor.attached(scheduler):
        await scheduler.set_policy("fixed", k=MAX_DRAFT_TOKENS)
        with pytest.raises(
            grpc.aio.AioRpcError, match=f"k = 9 .*accepted: 0 to {MAX_DRAFT_TOKENS}"
        ):
            await scheduler.set_policy("fixed", k=9)
        assert dict((await scheduler.status()).policy.parameters) == {"k": MAX_DRAFT_TOKENS}


async def test_executor_that_comes_later_gets_the_current_policy(scheduler, executor):
    await scheduler.set_policy("fixed", k=1)
    async with executor.attached(scheduler):
        assert (await executor.decide()).budget == NUM_REQUESTS


async def test_new_cost_profile_prices_the_next_step(scheduler, executor):
    flat = plan_pb2.CostModel(
        verify=[plan_pb2.VerifyCost(tokens=n, ms=[1.0]) for n in (1, 3, 15)],
        capture_limit=15,
        disturbed=True,
    )
    async with executor.attached(scheduler) as stream:
        assert (await executor.decide(0.3)).budget == 0
        assert not (await scheduler.status()).attachments[0].cost_disturbed
        await stream.send(cost=flat)
        outcomes = pb.PlanOutcomes(num_planned_steps=5, num_fallback_steps={"late": 2})
        heartbeat = pb.ExecutorHeartbeat(step_id=77, plan_outcomes=outcomes)
        assert not (await scheduler.status()).attachments[0].HasField("plan_outcomes")
        await stream.send(heartbeat=heartbeat)

        async def taken() -> bool:
            return (await scheduler.status()).attachments[0].executor_step_id == 77

        await _until(taken)
        assert (await scheduler.status()).attachments[0].plan_outcomes == outcomes
        assert (await scheduler.status()).attachments[0].cost_disturbed
        assert (await executor.decide(0.3)).budget == ALL_DRAFTS


async def test_decisions_can_be_watched(scheduler, executor):
    async with executor.attached(scheduler):
        await executor.decide()
        watch = scheduler.stub.WatchDecisions(pb.WatchDecisionsRequest(max_per_second=1000))
        await asyncio.wait_for(watch.initial_metadata(), TIMEOUT_S)
        await scheduler.set_policy("fixed", k=1)
        decision = await executor.decide()
        response = await asyncio.wait_for(watch.read(), TIMEOUT_S)
        watch.cancel()
    assert response.boot_id == executor.transport.boot_id
    assert response.decision.step_id == decision.step_id
    assert (response.decision.budget, response.decision.policy.name) == (NUM_REQUESTS, "fixed")
    assert (response.num_requests, response.num_missed) == (NUM_REQUESTS, 0)


async def test_heartbeats_tell_the_newest_step(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        decision = await executor.decide()
        async with asyncio.timeout(TIMEOUT_S):
            while (await stream.receive("heartbeat")).last_step_id != decision.step_id:
                pass


# ===================== Refusals =====================

INTERNAL = re.compile(r"memfd|/proc|0x7f|Traceback|\.py\b|specsched_scheduler")
"""Names of regions, places and code of the process that refuses: for its log alone."""
PROTOCOL_2 = pb.ProtocolRange(min_version=3, max_version=4)


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        (
            {"protocol": PROTOCOL_2},
            grpc.StatusCode.FAILED_PRECONDITION,
            "the executor speaks 3..4, this scheduler 1..2",
        ),
        ({"shared_memory": None}, grpc.StatusCode.FAILED_PRECONDITION, "hello.shared_memory"),
        ({"boot_id": b"x"}, grpc.StatusCode.INVALID_ARGUMENT, "boot_id has 1 bytes"),
        ({"boot_id": bytes(16)}, grpc.StatusCode.FAILED_PRECONDITION, "no shared memory"),
        ({"epoch": 99}, grpc.StatusCode.FAILED_PRECONDITION, "no shared memory"),
        ({"model": pb.ModelFacts()}, grpc.StatusCode.INVALID_ARGUMENT, "max_requests = 0"),
        (
            {"model": pb.ModelFacts(max_requests=64, max_draft_tokens=4)},
            grpc.StatusCode.FAILED_PRECONDITION,
            "no shared memory",
        ),
        (
            {"cost": plan_pb2.CostModel(verify=[plan_pb2.VerifyCost(tokens=1, ms=[-1.0])])},
            grpc.StatusCode.INVALID_ARGUMENT,
            "cost.verify",
        ),
    ],
)
async def test_hello_that_does_not_fit_is_refused(scheduler, executor, changes, code, named):
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(executor.transport.open_lane(), **changes))
    got, details = await stream.status()
    assert (got, named in details) == (code, True), details
    assert not INTERNAL.search(details)
    assert not (await scheduler.status()).attachments
    # What was refused leaves nothing behind: the next one attaches.
    async with executor.attached(scheduler):
        assert (await executor.decide()).step_id


async def test_other_abi_version_is_refused_with_both_versions(scheduler, executor):
    offer = executor.transport.open_lane()
    offer.shared_memory.abi_version = 99
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(offer))
    code, details = await stream.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"ABI version 99, expected {ABI_VERSION}" in details


async def test_nonce_is_good_for_one_attachment(scheduler, executor):
    offer = executor.transport.open_lane()
    first, second = AttachCall(scheduler.stub), AttachCall(scheduler.stub)
    await first.send(hello=executor.hello(offer))
    await first.receive("welcome")
    await first.receive("ready")
    await second.send(hello=executor.hello(offer))
    assert (await second.status())[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert len((await scheduler.status()).attachments) == 1
    first.call.cancel()


@pytest.mark.parametrize(
    ("message", "named"),
    [({"heartbeat": pb.ExecutorHeartbeat()}, "is heartbeat, accepted: hello"), ({}, "is None")],
)
async def test_first_message_must_be_hello(scheduler, message, named):
    stream = AttachCall(scheduler.stub)
    await stream.send(**message)
    code, details = await stream.status()
    assert (code, named in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


async def test_silent_executor_is_let_go(start):
    scheduler = await start(hello_timeout_ms=100)
    code, details = await AttachCall(scheduler.stub).status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "no hello within 0.1 s" in details


async def test_second_hello_ends_the_stream(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await stream.send(hello=pb.Hello())
        code, details = await stream.status()
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "a second hello on one Attach stream",
    )


async def test_impossible_cost_update_ends_the_stream_and_names_the_field(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await stream.send(cost=plan_pb2.CostModel(verify=[plan_pb2.VerifyCost(tokens=1)]))
        code, details = await stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cost.verify" in details


async def test_executors_beyond_the_limit_are_refused(start, run_dir):
    scheduler = await start(max_attachments=1)
    await scheduler.until_serving()
    with SharedMemoryExecutor(run_dir) as one, SharedMemoryExecutor(run_dir) as other:
        async with one.attached(scheduler):
            stream = AttachCall(scheduler.stub)
            await stream.send(hello=other.hello(other.transport.open_lane()))
            code, details = await stream.status()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "--max-attachments" in details

        async def admitted() -> bool:
            try:
                async with other.attached(scheduler):
                    return bool((await other.decide()).step_id)
            except grpc.aio.AioRpcError:  # the place is free once the planner of the first ended
                return False

        await _until(admitted)


# ===================== Ends =====================


async def test_detach_ends_the_stream_in_good_order(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await stream.send(detach=pb.Detach(reason="done"))
        assert (await stream.status())[0] is grpc.StatusCode.OK
        assert not (await scheduler.status()).attachments


async def test_vanished_executor_is_forgotten_and_its_planner_ends(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await executor.decide()
        stream.call.cancel()

        async def gone() -> bool:
            return not (await scheduler.status()).attachments

        async def silent() -> bool:
            try:
                async with asyncio.timeout(0.3):
                    await executor.decide()
            except TimeoutError:
                return True
            return False  # the planner may still finish the step that it is at

        await _until(gone)
        await _until(silent)


async def test_shutdown_ends_every_stream_and_the_executor_falls_back(scheduler, executor):
    async with executor.attached(scheduler) as stream:
        await executor.decide()
        await scheduler.stop()
        assert (await stream.status())[0] is grpc.StatusCode.OK
        executor.transport.close_lane(0)
        assert executor.transport.read(3) is FallbackReason.NO_SCHEDULER
