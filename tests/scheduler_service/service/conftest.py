from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import grpc
import pytest
from specsched_protocol.run_dir import RunDir
from specsched_protocol.v1.scheduler_pb2_grpc import SchedulerServiceStub
from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.policies import build_policy
from specsched_scheduler.service import SchedulerServer

from tests.scheduler_service.service.support import TIMEOUT_S, Scheduler, SharedMemoryExecutor


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir.open(tmp_path / "run")


@pytest.fixture
async def start(run_dir) -> AsyncIterator[Callable[..., Awaitable[Scheduler]]]:
    """Starts schedulers in this process; their sockets, memory and planners are real."""
    running: list[Scheduler] = []

    async def start_one(*, policy: str = "throughput", **options: object) -> Scheduler:
        config = SchedulerConfig(run_dir=run_dir.root, heartbeat_ms=50, **options)
        server = SchedulerServer(config, run_dir, build_policy(policy))
        task = asyncio.create_task(server.serve())
        await asyncio.sleep(0)  # a socket in use is known at once
        if task.done():
            await task
        channel = grpc.aio.insecure_channel(f"unix:{server.socket_path}")
        scheduler = Scheduler(server, task, channel, SchedulerServiceStub(channel))
        running.append(scheduler)
        await asyncio.wait_for(channel.channel_ready(), TIMEOUT_S)
        return scheduler

    yield start_one
    for scheduler in running:
        await scheduler.stop()


@pytest.fixture
async def scheduler(start) -> Scheduler:
    running = await start()
    await running.until_serving()
    return running


@pytest.fixture
def executor(run_dir) -> Iterator[SharedMemoryExecutor]:
    with SharedMemoryExecutor(run_dir) as it:
        yield it
