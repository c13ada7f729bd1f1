"""The service as an operator sees it: health, reflection, status, policies, what-if plans."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import threading

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.service import SERVICE_NAME, SocketInUseError
from specsched_scheduler.service import server as server_module
from structlog.testing import capture_logs

from tests.scheduler_service.service.support import STEEP_COST, AttachCall


async def test_health_says_serving_only_once_everything_is_warmed(start, executor, monkeypatch):
    await asyncio.to_thread(server_module.warm_up)  # the attachment below relies on it
    may_finish = threading.Event()
    monkeypatch.setattr(server_module, "warm_up", lambda: may_finish.wait(60))
    scheduler = await start()
    assert await scheduler.health() == HealthCheckResponse.NOT_SERVING
    assert await scheduler.health(SERVICE_NAME) == HealthCheckResponse.NOT_SERVING
    # An executor that comes now is served as soon as it can be, without asking again.
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(executor.transport.open_lane()))
    may_finish.set()
    await stream.receive("welcome")
    await stream.receive("ready")
    assert await scheduler.health() == HealthCheckResponse.SERVING
    assert await scheduler.health(SERVICE_NAME) == HealthCheckResponse.SERVING


async def test_stop_while_warming_up_does_not_wait_for_it(start, executor, monkeypatch):
    """Whoever waits for the warm-up, to attach or for a plan, is told."""
    may_finish = threading.Event()
    monkeypatch.setattr(server_module, "warm_up", lambda: may_finish.wait(60))
    scheduler = await start()
    stream = AttachCall(scheduler.stub)
    await stream.send(hello=executor.hello(executor.transport.open_lane()))
    plan = asyncio.ensure_future(scheduler.stub.Plan(_plan_request()))
    await scheduler.health()  # answered in turn: the two calls before have come by then
    assert not plan.done()
    await asyncio.wait_for(scheduler.stop(), 30)
    assert not may_finish.is_set()
    may_finish.set()
    assert not scheduler.server.socket_path.exists()
    with pytest.raises(grpc.aio.AioRpcError, match="this scheduler is shutting down"):
        await plan
    assert (await stream.status())[0] == grpc.StatusCode.UNAVAILABLE


async def test_a_long_warm_up_is_told_again_and_again_and_so_is_its_end(start, monkeypatch):
    may_finish = threading.Event()
    monkeypatch.setattr(server_module, "warm_up", lambda: may_finish.wait(60))
    monkeypatch.setattr(server_module, "_TELL_AFTER_S", 0.0)
    monkeypatch.setattr(server_module, "_TELL_AGAIN_S", 0.01)
    with capture_logs() as logs:
        scheduler = await start()
        async with asyncio.timeout(60):
            while sum(line["event"] == "still compiling" for line in logs) < 2:
                await asyncio.sleep(0.01)
        await asyncio.wait_for(scheduler.stop(), 30)
    may_finish.set()
    assert {"event": "ending", "is_compiling": True, "log_level": "info"} in logs
    told = [line["event"] for line in logs if "compiling" in line["event"]]
    assert told[:2] == ["compiling", "still compiling"]


async def test_socket_is_private_and_removed_at_the_end(scheduler):
    path = scheduler.server.socket_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await scheduler.stop()
    assert not path.exists()


async def test_second_scheduler_of_a_name_is_refused_and_the_first_serves_on(scheduler, start):
    with pytest.raises(SocketInUseError, match="another --name"):
        await start()
    assert (await scheduler.status()).policy.name == "throughput"
    other = await start(name="other")
    assert (await other.status()).policy.name == "throughput"


async def test_reflection_lists_the_services(scheduler):
    stub = reflection_pb2_grpc.ServerReflectionStub(scheduler.channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10
    )
    names = {
        service.name async for reply in call for service in reply.list_services_response.service
    }
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


async def test_status_tells_who_it_is(scheduler):
    status = await scheduler.status()
    assert (len(status.scheduler_id), status.protocol.max_version) == (16, 2)
    assert status.uptime_seconds > 0
    assert {"throughput", "ratio", "greedy-causal", "fixed", "threshold", "off"} <= set(
        status.policies
    )
    assert not status.attachments


def _plan_request(**changes: object) -> plan_pb2.PlanRequest:
    request = plan_pb2.PlanRequest(
        max_draft_tokens=2,
        num_other_tokens=1,
        requests=[plan_pb2.RequestState(confidence=[0.99, 0.98])],
        cost=STEEP_COST,
    )
    request.MergeFrom(plan_pb2.PlanRequest(**changes))
    return request


async def test_plan_answers_without_an_executor(scheduler):
    fixed = plan_pb2.PolicySpec(name="fixed", parameters={"k": 1})
    response = await scheduler.stub.Plan(_plan_request(policy=fixed), timeout=10)
    assert (response.decision.budget, list(response.verify_lens)) == (1, [1])
    assert response.decision.policy == fixed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_prefill_tokens": 2}, "num_prefill_tokens = 2"),
        ({"policy": plan_pb2.PolicySpec(name="oracle")}, "'oracle'"),
        ({"cost": plan_pb2.CostModel(verify=[plan_pb2.VerifyCost(tokens=4)])}, "cost.verify"),
    ],
)
async def test_malformed_plan_request_names_the_field(scheduler, changes, named):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.stub.Plan(_plan_request(**changes), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in caught.value.details()


async def test_policy_is_replaced_as_a_whole_or_not_at_all(scheduler):
    response = await scheduler.set_policy("fixed", k=2)
    assert (response.policy.parameters["k"], response.previous_policy.name) == (2, "throughput")
    for name, parameters in (("oracle", {}), ("fixed", {"k": -1}), ("fixed", {"depth": 1})):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scheduler.set_policy(name, **parameters)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    policy = (await scheduler.status()).policy
    assert (policy.name, dict(policy.parameters)) == ("fixed", {"k": 2})


async def test_message_beyond_the_limit_is_refused(start):
    scheduler = await start(max_message_bytes=64 << 10)
    spec = plan_pb2.PolicySpec(name="x" * (65 << 10))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.stub.SetPolicy(pb.SetPolicyRequest(policy=spec), timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_beyond_the_limit_are_refused_and_the_others_go_on(start, monkeypatch):
    monkeypatch.setattr("specsched_scheduler.service.server._MAX_CALLS", 3)
    scheduler = await start()
    request = pb.WatchDecisionsRequest(max_per_second=1)
    watching = [scheduler.stub.WatchDecisions(request, timeout=60) for _ in range(3)]
    for call in watching:
        await call.initial_metadata()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.status()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    watching.pop().cancel()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await scheduler.status()
                break
    for call in watching:
        call.cancel()


async def test_fault_of_our_own_is_logged_but_not_told(scheduler, monkeypatch):
    def fail() -> tuple[str, ...]:
        raise RuntimeError("the secret plan")

    monkeypatch.setattr("specsched_scheduler.service.servicer.available_policies", fail)
    with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
        await scheduler.status()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert any(log["event"] == "call failed" and log.get("exc_info") for log in logs)


async def test_watch_rate_out_of_range_is_refused(scheduler):
    call = scheduler.stub.WatchDecisions(pb.WatchDecisionsRequest(max_per_second=1001), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError, match="max_per_second = 1001"):
        await call.read()


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (
            pb.LaneReply(done=True, active_scheduler="v2"),
            {"event": "drained", "executor": "test", "successor": "v2"},
        ),
        (
            pb.LaneReply(active_scheduler="default", reason="there is no other"),
            {"event": "nobody takes over", "executor": "test", "because": "there is no other"},
        ),
    ],
)
async def test_its_end_tells_who_takes_over(start, executor, reply, line):
    scheduler = await start()
    stream = AttachCall(scheduler.stub)
    hello = executor.hello(
        executor.transport.open_lane(),
        protocol=pb.ProtocolRange(min_version=1, max_version=2),
        features=[pb.FEATURE_LANE_CONTROL],
    )
    await stream.send(hello=hello)
    await stream.receive("welcome")
    await stream.receive("ready")
    with capture_logs() as logs:
        stopping = asyncio.create_task(scheduler.stop())
        request = await stream.receive("lane_request")
        assert request.wish == pb.LANE_WISH_DRAIN
        reply.request_id = request.request_id
        await stream.send(lane_reply=reply)
        await asyncio.wait_for(stopping, 30)
    assert line | {"log_level": "info"} in logs
