"""Sends the requests of one round and records what each experienced."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from specsched_client._async_client import AsyncClient
from specsched_client._errors import ConnectionFailedError, SpecschedError
from specsched_client._sampling import Sampling
from specsched_client._types import Delta

from .load import ClosedLoop, Load, OpenLoop, arrival_times_s
from .records import RequestRecord

__all__ = ["Workload", "run_round"]

Progress = Callable[[], None]
"""Called once for each request that ended."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a round: request i has prompt i, wrapping around, seed `seed + i` or none.

    Seeded answers are repeatable, at temperatures above 0 at the price of accepted drafts.
    """

    prompts: Sequence[Sequence[int]]
    num_requests: int
    sampling: Sampling
    seed: int | None = None
    timeout_s: float | None = None

    def prompt(self, index: int) -> Sequence[int]:
        """Token ids of request `index`."""
        return self.prompts[index % len(self.prompts)]

    def sampling_of(self, index: int) -> Sampling:
        """How request `index` samples."""
        if self.seed is None:
            return self.sampling
        return replace(self.sampling, seed=self.seed + index)


async def run_round(
    client: AsyncClient, load: Load, work: Workload, progress: Progress = lambda: None
) -> list[RequestRecord]:
    """Run all requests and return their records in order.

    A request that fails is recorded. Raises ConnectionFailedError where nobody answers any more.
    """
    sender = _Sender(client, work, progress)
    if isinstance(load, ClosedLoop):
        await _closed(sender, load, work.num_requests)
    else:
        await _open(sender, load, work)
    return sorted(sender.records, key=lambda record: record.index)


async def _closed(sender: _Sender, load: ClosedLoop, num_requests: int) -> None:
    indexes = iter(range(num_requests))

    async def user() -> None:
        for index in indexes:
            await sender.send(index, time.monotonic())

    async with _first_error(), asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, num_requests)):
            group.create_task(user())


async def _open(sender: _Sender, load: OpenLoop, work: Workload) -> None:
    started_s = time.monotonic()
    async with _first_error(), asyncio.TaskGroup() as group:
        for index, offset_s in enumerate(arrival_times_s(load, work.num_requests, work.seed or 0)):
            await asyncio.sleep(max(0.0, started_s + offset_s - time.monotonic()))
            group.create_task(sender.send(index, started_s + offset_s))


@contextlib.asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the first error of a task group as itself."""
    try:
        yield
    except* SpecschedError as errors:
        raise errors.exceptions[0] from None


class _Sender:
    def __init__(self, client: AsyncClient, work: Workload, progress: Progress) -> None:
        self._client = client
        self._work = work
        self._progress = progress
        self.records: list[RequestRecord] = []

    async def send(self, index: int, start_s: float) -> None:
        """Send one request and read its answer to the end."""
        answer = _Answer(index, start_s)
        stream = self._client.stream(
            self._work.prompt(index),
            self._work.sampling_of(index),
            timeout_s=self._work.timeout_s,
        )
        try:
            async with contextlib.aclosing(stream) as deltas:
                async for delta in deltas:
                    answer.add(delta)
        except ConnectionFailedError:
            raise
        except SpecschedError as error:
            answer.error = str(error)
        self.records.append(answer.record())
        self._progress()


class _Answer:
    """Folds the deltas of a request."""

    def __init__(self, index: int, start_s: float) -> None:
        self._record = RequestRecord(index, start_s, start_s)
        self._num_output_tokens = 0
        self.error: str | None = None

    def add(self, delta: Delta) -> None:
        if delta.token_ids and self._record.first_token_s is None:
            self._record = replace(
                self._record,
                first_token_s=time.monotonic(),
                num_first_tokens=len(delta.token_ids),
            )
        self._num_output_tokens += len(delta.token_ids)
        if (whole := delta.completion) is not None:
            self._record = replace(
                self._record,
                num_prompt_tokens=whole.num_prompt_tokens,
                num_verified_tokens=whole.num_draft_tokens,
                num_accepted_tokens=whole.num_accepted_tokens,
                finish_reason=whole.finish_reason,
            )
            if whole.finish_reason == "abort":
                self.error = "the request was aborted before its end"

    def record(self) -> RequestRecord:
        return replace(
            self._record,
            end_s=time.monotonic(),
            num_output_tokens=self._num_output_tokens,
            error=self.error,
        )
