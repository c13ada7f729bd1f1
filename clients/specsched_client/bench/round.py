"""Runs one round: all of its requests, from the first to the end of the last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from specsched_client._async_client import AsyncClient
from specsched_client._errors import SpecschedError

from .load import ClosedLoop, Load, OpenLoop, arrival_times_s
from .records import RequestRecord
from .sender import Sender, Workload

__all__ = ["first_error", "run_round"]

Progress = Callable[[], None]
"""Called once for each request that ended."""


async def run_round(
    client: AsyncClient, load: Load, work: Workload, progress: Progress = lambda: None
) -> list[RequestRecord]:
    """Run all requests and return their records in order.

    A request that fails is recorded. Raises ConnectionFailedError where nobody answers any more.
    """
    sender = Sender(client, work, progress)
    if isinstance(load, ClosedLoop):
        await _closed(sender, load, work.num_requests)
    else:
        await _open(sender, load, work)
    return sorted(sender.records, key=lambda record: record.index)


async def _closed(sender: Sender, load: ClosedLoop, num_requests: int) -> None:
    indexes = iter(range(num_requests))

    async def user() -> None:
        for index in indexes:
            await sender.send(index, time.monotonic())

    async with first_error(), asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, num_requests)):
            group.create_task(user())


async def _open(sender: Sender, load: OpenLoop, work: Workload) -> None:
    started_s = time.monotonic()
    async with first_error(), asyncio.TaskGroup() as group:
        for index, offset_s in enumerate(arrival_times_s(load, work.num_requests, work.seed or 0)):
            await asyncio.sleep(max(0.0, started_s + offset_s - time.monotonic()))
            group.create_task(sender.send(index, started_s + offset_s))


@contextlib.asynccontextmanager
async def first_error() -> AsyncIterator[None]:
    """Raise the first error of a task group as itself."""
    try:
        yield
    except* SpecschedError as errors:
        raise errors.exceptions[0] from None
