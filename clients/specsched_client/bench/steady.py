"""A round that is measured for a fixed time while all of its users are busy, and ends there.

Users begin with answers of different lengths, so that from the start requests end, and prompts
come, at the even pace that they have in the long run. The window begins `settle_s` after every user
has its first token, by the clock and not with a message, and so lies at any phase of the steps; it
is `window_s` long, and what runs at its end is cancelled. So rounds may be short: neither filling
up nor emptying is in them. Requests never run out. Rounds of equal `first_index` have the same
ones in the same order; a faster round gets further into them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specsched_client._async_client import AsyncClient
from specsched_client._errors import InvalidRequestError, ServerError
from specsched_client._sampling import Sampling

from .records import RequestRecord
from .round import first_error
from .sender import Sender, SteadyTimes, Workload

__all__ = [
    "Alone",
    "Others",
    "SteadyRound",
    "UserLog",
    "Users",
    "Window",
    "run_users",
    "shares_of",
    "steady_round",
]


@dataclass(frozen=True, slots=True)
class Users:
    """The users of a round that one process plays.

    first_requests: of each user. next_request, stride: those that they take in turn afterwards.
    num_users: of the whole round, in all processes.
    """

    first_requests: tuple[int, ...]
    next_request: int
    stride: int
    num_users: int


@dataclass(frozen=True, slots=True)
class UserLog:
    """What one process saw. All times are seconds of the machine's monotonic clock.

    begun_s: when its users began. ready_s: when the last of them had its first token. arrivals:
    when tokens came, and how many. records: of requests that ended. num_requests: of the round, up
    to the last one begun here.
    """

    begun_s: float
    ready_s: float
    arrivals: Sequence[tuple[float, int]]
    records: Sequence[RequestRecord]
    num_requests: int


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, and the tokens that came in it.

    begun_s: when the round began. num_requests: begun until it was over.
    """

    begun_s: float
    start_s: float
    end_s: float
    num_output_tokens: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class SteadyRound:
    """records: of the requests that ended in the window."""

    window: Window
    records: tuple[RequestRecord, ...]


def shares_of(num_users: int, num_processes: int) -> list[Users]:
    """Split a round's users and requests among processes, as even as can be."""
    stride = min(num_processes, num_users)
    return [
        Users(tuple(range(share, num_users, stride)), num_users + share, stride, num_users)
        for share in range(stride)
    ]


class Others(Protocol):
    """The other processes of a round, as one of them sees them."""

    def tell_ready(self, ready_s: float) -> None:
        """Every user of this process has its first token."""

    async def wait_for_end(self) -> None:
        """Return once the window is over; it begins when all processes are ready."""


class Alone:
    """The others of a process that plays all users."""

    def __init__(self, times: SteadyTimes) -> None:
        self._times = times
        self._ready: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def tell_ready(self, ready_s: float) -> None:
        """See Others."""
        self._ready.set_result(ready_s)

    async def wait_for_end(self) -> None:
        """See Others."""
        end_s = self._times.end_s(await self._ready)
        while (left_s := end_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)


async def run_users(client: AsyncClient, users: Users, work: Workload, others: Others) -> UserLog:
    """Play these users until the round ends, then cancel what runs.

    Raises ServerError for a request that failed, ConnectionFailedError where nobody answers.
    """
    player = _Player(client, users, work, others)
    async with first_error(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(player.play(first)) for first in users.first_requests]
        await others.wait_for_end()
        for task in tasks:
            task.cancel()
    return player.log()


def steady_round(logs: Sequence[UserLog], times: SteadyTimes) -> SteadyRound:
    """Join what the processes of a round saw. Raises InvalidRequestError for a window too short."""
    ready_s = max(log.ready_s for log in logs)
    start_s, end_s = times.start_s(ready_s), times.end_s(ready_s)
    num_tokens = sum(n for log in logs for time_s, n in log.arrivals if start_s < time_s <= end_s)
    if not num_tokens:
        raise InvalidRequestError(
            f"no token came within {times.window_s:g} s; accepted: a longer --round-seconds"
        )
    ended = [each for log in logs for each in log.records if start_s < each.end_s <= end_s]
    begun_s = min(log.begun_s for log in logs)
    num_requests = max(log.num_requests for log in logs)
    return SteadyRound(
        Window(begun_s, start_s, end_s, num_tokens, num_requests),
        tuple(sorted(ended, key=lambda each: each.index)),
    )


class _Player:
    def __init__(self, client: AsyncClient, users: Users, work: Workload, others: Others) -> None:
        self._sender = Sender(client, work, on_tokens=self._note)
        self._users = users
        self._work = work
        self._others = others
        self._requests = itertools.count(users.next_request, users.stride)
        self._num_requests = 0
        self._without_token = set(users.first_requests)
        self._arrivals: list[tuple[float, int]] = []
        self._begun_s = time.monotonic()
        self._ready_s = self._begun_s

    def log(self) -> UserLog:
        return UserLog(
            self._begun_s,
            self._ready_s,
            self._arrivals,
            self._sender.records,
            self._num_requests,
        )

    async def play(self, first: int) -> None:
        """Take one request after the other, until cancelled."""
        await self._send(first, self._first_sampling(first))
        self._note_ready(first, time.monotonic())  # where the whole answer was empty
        for request in self._requests:
            await self._send(request)

    async def _send(self, request: int, sampling: Sampling | None = None) -> None:
        self._num_requests = max(self._num_requests, request + 1)
        record = await self._sender.send(request, time.monotonic(), sampling)
        if record.error is not None:
            raise ServerError(f"request {request} of the round failed: {record.error}")

    def _first_sampling(self, first: int) -> Sampling:
        """The first to start has the longest answer: the others are there before it ends."""
        sampling = self._work.sampling_of(first)
        share = (self._users.num_users - first) / self._users.num_users
        return replace(sampling, max_tokens=max(2, round((sampling.max_tokens or 2) * share)))

    def _note(self, index: int, time_s: float, num_tokens: int) -> None:
        self._arrivals.append((time_s, num_tokens))
        self._note_ready(index, time_s)

    def _note_ready(self, request: int, time_s: float) -> None:
        if request in self._without_token:
            self._without_token.discard(request)
            if not self._without_token:
                self._ready_s = time_s
                self._others.tell_ready(time_s)
