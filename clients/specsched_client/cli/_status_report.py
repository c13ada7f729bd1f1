"""What `specsched status` found out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smg_grpc_proto import vllm_engine_pb2 as pb
from specsched_protocol.start_marks import StartingExecutor, executors_starting
from specsched_protocol.v1 import executor_pb2, scheduler_pb2

from specsched_client import (
    AsyncClient,
    AsyncSchedulerClient,
    SpecschedError,
    UnsupportedError,
)


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """An executor's answers; `counters`, `schedulers` are None where it does not have the call."""

    health: pb.HealthCheckResponse
    model: pb.GetModelInfoResponse
    server: pb.GetServerInfoResponse
    load: pb.SchedulerLoad
    counters: executor_pb2.StepCounters | None
    schedulers: executor_pb2.ListSchedulersResponse | None


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """A scheduler's answers; `is_serving` is None where it does not have the call."""

    status: scheduler_pb2.GetStatusResponse
    is_serving: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """Answers, or the reason why there is none, of the executor and of each scheduler by name.

    starting: executors in the run directory that do not serve yet.
    """

    target: str
    executor: ExecutorReport | str
    schedulers: Mapping[str, SchedulerReport | str]
    starting: Sequence[StartingExecutor] = ()

    @property
    def anyone_answered(self) -> bool:
        """Whether at least one process could be reached."""
        return any(not isinstance(each, str) for each in (self.executor, *self.schedulers.values()))


async def gather_report(
    target: str, schedulers: Mapping[str, str], root: Path, *, timeout_s: float
) -> Report:
    """Ask the executor at `target` and the schedulers (name -> target) at the same time.

    root: the run directory.
    """
    executor, statuses = await asyncio.gather(
        _ask_executor(target, timeout_s),
        asyncio.gather(*(_ask_scheduler(each, timeout_s) for each in schedulers.values())),
    )
    answers = dict(zip(schedulers, statuses, strict=True))
    return Report(target, executor, answers, executors_starting(root))


async def _ask_executor(target: str, timeout_s: float) -> ExecutorReport | str:
    async with AsyncClient(target) as client:
        try:
            health, model, server, loads = await asyncio.gather(
                client.health(timeout_s=timeout_s),
                client.model_info(timeout_s=timeout_s),
                client.server_info(timeout_s=timeout_s),
                client.loads(timeout_s=timeout_s),
            )
            counters = await _step_counters(client, timeout_s)
            attached = await _attached_schedulers(client, timeout_s)
        except SpecschedError as error:
            return str(error)
    return ExecutorReport(health, model, server, loads.loads[0], counters, attached)


async def _step_counters(client: AsyncClient, timeout_s: float) -> executor_pb2.StepCounters | None:
    try:
        return (await client.step_counters(timeout_s=timeout_s)).counters
    except UnsupportedError:
        return None


async def _attached_schedulers(
    client: AsyncClient, timeout_s: float
) -> executor_pb2.ListSchedulersResponse | None:
    try:
        return await client.schedulers(timeout_s=timeout_s)
    except UnsupportedError:
        return None


async def _ask_scheduler(target: str, timeout_s: float) -> SchedulerReport | str:
    async with AsyncSchedulerClient(target) as client:
        try:
            status = await client.status(timeout_s=timeout_s)
            return SchedulerReport(status, await _is_serving(client, timeout_s))
        except SpecschedError as error:
            return str(error)


async def _is_serving(client: AsyncSchedulerClient, timeout_s: float) -> bool | None:
    try:
        return await client.is_serving(timeout_s=timeout_s)
    except UnsupportedError:
        return None
