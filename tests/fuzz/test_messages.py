"""Mutated messages on real streams: the peer refuses or ignores them and goes on serving others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import time
from collections.abc import Callable
from concurrent import futures

import grpc
from specsched_executor.attach import AttachManager
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.policies import build_policy
from specsched_scheduler.service import SchedulerServer

from tests.executor.attach.scripted_scheduler import READY, ScriptedScheduler, welcome
from tests.executor.attach.support import FACTS, FAST, eventually
from tests.scheduler_service.service.support import STEEP_COST, TIMEOUT_S, make_step

SECONDS = float(os.environ.get("SPECSCHED_FUZZ_SECONDS", "1.5"))
SEED = int(os.environ.get("SPECSCHED_FUZZ_SEED", str(time.time_ns() % 1_000_000)))
ATTACH = "/specsched.v1.SchedulerService/Attach"


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, bytes cut, repeated or put in."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + rng.randrange(8)] = b""
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            out[at:at] = out[at : at + rng.randrange(16)]
    return bytes(out)


def hello() -> pb.Hello:
    return pb.Hello(
        protocol=pb.ProtocolRange(min_version=1, max_version=2),
        boot_id=bytes(16),
        executor_name="fuzz",
        model=pb.ModelFacts(name="tiny", max_requests=3, max_draft_tokens=4),
        cost=STEEP_COST,
        accepts_inline=True,
        features=[pb.FEATURE_LANE_CONTROL],
    )


def steps() -> pb.InlineSteps:
    _, request = make_step(5, 0.9)
    return pb.InlineSteps(
        plan_request=pb.InlinePlanRequest(
            publication=1,
            step_id=5,
            source_step_id=3,
            num_other_tokens=3,
            slot_id=request.slot_id.tobytes(),
            generation=request.generation.tobytes(),
            num_draft_tokens=request.num_draft_tokens.tobytes(),
            samples=request.samples.tobytes(),
            weight=request.weight.tobytes(),
            context_tokens=request.context_tokens.tobytes(),
            num_confidences=request.num_draft_tokens.tobytes(),
            confidence=bytes(4 * 3 * 4),
            is_greedy=request.is_greedy.tobytes(),
        ),
        reports=[pb.InlineReport(step_id=4, slot_id=request.slot_id.tobytes())],
    )


MESSAGES = [
    pb.AttachRequest(steps=steps()),
    pb.AttachRequest(cost=STEEP_COST),
    pb.AttachRequest(heartbeat=pb.ExecutorHeartbeat(step_id=7)),
    pb.AttachRequest(lane_status=pb.LaneStatus(role=pb.LANE_ROLE_SHADOW)),
    pb.AttachRequest(lane_reply=pb.LaneReply(request_id=1, done=True)),
]


async def test_scheduler_goes_on_after_mutated_messages(tmp_path):
    run_dir = RunDir.open(tmp_path / "run")
    config = SchedulerConfig(run_dir=run_dir.root)
    server = SchedulerServer(config, run_dir, build_policy("throughput"))
    task = asyncio.create_task(server.serve())
    rng = random.Random(SEED)
    async with grpc.aio.insecure_channel(f"unix:{server.socket_path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), TIMEOUT_S)
        await asyncio.wait_for(_attach(channel, [hello_bytes()]), 240)  # warm by then
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            data = [hello_bytes(), *(each.SerializeToString() for each in MESSAGES)]
            victim = rng.randrange(len(data))
            data[victim] = mutated(rng, data[victim])
            await asyncio.wait_for(_attach(channel, data), TIMEOUT_S)
        # A sound one is welcomed as ever, and nothing is left of the others.
        assert await asyncio.wait_for(_attach(channel, [hello_bytes()]), TIMEOUT_S), SEED
        async with asyncio.timeout(TIMEOUT_S):
            while (await _status(channel)).attachments:
                await asyncio.sleep(0.02)
    server.stop()
    await asyncio.wait_for(task, TIMEOUT_S)


def hello_bytes() -> bytes:
    return pb.AttachRequest(hello=hello()).SerializeToString()


async def _attach(channel: grpc.aio.Channel, data: list[bytes]) -> bool:
    """Send raw messages; whether it came to Ready."""
    call = channel.stream_stream(ATTACH)()
    is_ready = False
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for each in data:
            await call.write(each)
        await call.done_writing()
        while (answer := await call.read()) is not grpc.aio.EOF:
            message = pb.AttachResponse.FromString(answer)
            is_ready |= message.WhichOneof("message") == "ready"
    details = await call.details() or ""
    # What goes wrong is told without paths of this process or names of its memory.
    assert "/proc" not in details, details
    assert "memfd" not in details, details
    return is_ready


async def _status(channel: grpc.aio.Channel) -> pb.GetStatusResponse:
    call = channel.unary_unary(
        "/specsched.v1.SchedulerService/GetStatus",
        request_serializer=pb.GetStatusRequest.SerializeToString,
        response_deserializer=pb.GetStatusResponse.FromString,
    )
    return await call(pb.GetStatusRequest(), timeout=10)


class RawScheduler:
    """Serves Attach with whatever bytes the test makes of each Hello."""

    def __init__(self, path, answers: Callable[[pb.Hello], list[bytes]]) -> None:
        self.num_attached = 0
        self._answers = answers
        self._closing: queue.Queue[None] = queue.Queue()
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach, request_deserializer=pb.AttachRequest.FromString
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "specsched.v1.SchedulerService", {"Attach": handler}
                )
            ]
        )
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def _attach(self, requests, context):
        hello = next(requests).hello
        self.num_attached += 1
        yield from self._answers(hello)

    def stop(self) -> None:
        self._server.stop(0).wait()


def test_executor_goes_on_after_mutated_messages(tmp_path):
    run_dir = RunDir.open(tmp_path / "run")
    transport = SharedMemoryTransport(run_dir, RegionShape(4, 7, num_report_slots=4), FACTS.boot_id)
    manager = AttachManager(run_dir, transport, FACTS, FAST)
    rng = random.Random(SEED)

    def answers(hello: pb.Hello) -> list[bytes]:
        messages = [
            welcome(hello, transport=pb.TRANSPORT_INLINE, features=[pb.FEATURE_LANE_CONTROL]),
            READY,
            pb.AttachResponse(decision=pb.InlineDecision(step_id=3, epoch=hello.epoch)),
            pb.AttachResponse(policy_changed=pb.PolicyChanged()),
            pb.AttachResponse(
                lane_request=pb.LaneRequest(
                    request_id=1, wish=pb.LANE_WISH_ACTIVATE, epoch=hello.epoch
                )
            ),
        ]
        data = [each.SerializeToString() for each in messages]
        victim = rng.randrange(len(data))
        data[victim] = mutated(rng, data[victim])
        return data

    raw = RawScheduler(run_dir.scheduler_socket("mad"), answers)
    manager.start()
    time.sleep(SECONDS)  # the time that mutations are fed, not a wait for anything
    assert raw.num_attached > 3, SEED
    sound = ScriptedScheduler(run_dir.scheduler_socket("sound"))
    eventually(lambda: any(i.scheduler_name == "sound" for i in manager.attachments()), 20)
    raw.stop()
    eventually(lambda: any(i.active and i.scheduler_name == "sound" for i in manager.attachments()))
    sound.stop()
    manager.stop()
    transport.close()
