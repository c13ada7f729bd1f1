"""A round that is measured while all of its users are busy, and ends there.

Users begin with answers of different lengths, so that from the start requests end, and prompts
come, at the even pace that they have in the long run. Tokens count from when every user has its
first one until the first user finds no request left; what still runs then is cancelled. So rounds
may be short: neither filling up nor emptying is in them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specsched_client._async_client import AsyncClient
from specsched_client._errors import InvalidRequestError, ServerError
from specsched_client._sampling import Sampling

from .records import RequestRecord
from .round import first_error
from .sender import Sender, Workload

__all__ = [
    "Nobody",
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

    first_requests: of each user. requests: that they take in turn afterwards. num_users: of the
    whole round, in all processes.
    """

    first_requests: tuple[int, ...]
    requests: tuple[int, ...]
    num_users: int


@dataclass(frozen=True, slots=True)
class UserLog:
    """What one process saw. All times are seconds of the machine's monotonic clock.

    begun_s: when its users began. arrivals: when tokens came, and how many. ready_s: when each of
    its users had the first one. exhausted_s: when the first of them found no request left; None
    where none did.
    """

    begun_s: float
    records: Sequence[RequestRecord]
    arrivals: Sequence[tuple[float, int]]
    ready_s: float | None
    exhausted_s: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """The time that counts, and the tokens that came in it. begun_s: when the round began."""

    begun_s: float
    start_s: float
    end_s: float
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class SteadyRound:
    """records: of the requests that ended in the window."""

    window: Window
    records: tuple[RequestRecord, ...]


def shares_of(num_users: int, num_requests: int, num_processes: int) -> list[Users]:
    """Split a round's users and requests among processes, as even as can be."""
    return [
        Users(
            tuple(range(share, num_users, num_processes)),
            tuple(range(num_users + share, num_requests, num_processes)),
            num_users,
        )
        for share in range(min(num_processes, num_users))
    ]


class Others(Protocol):
    """The other processes of a round, as one of them sees them."""

    def tell_exhausted(self) -> None:
        """The first user of this process found no request left."""

    async def wait_for_end(self) -> None:
        """Return once a user of any process found none left."""


class Nobody:
    """The others of a process that plays all users."""

    def __init__(self) -> None:
        self._exhausted = asyncio.Event()

    def tell_exhausted(self) -> None:
        """See Others."""
        self._exhausted.set()

    async def wait_for_end(self) -> None:
        """See Others."""
        await self._exhausted.wait()


async def run_users(client: AsyncClient, users: Users, work: Workload, others: Others) -> UserLog:
    """Play these users until the round ends, then cancel what runs.

    Raises ConnectionFailedError where nobody answers any more.
    """
    player = _Player(client, users, work, others)
    async with first_error(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(player.play(first)) for first in users.first_requests]
        await others.wait_for_end()
        for task in tasks:
            task.cancel()
    return player.log()


def steady_round(logs: Sequence[UserLog]) -> SteadyRound:
    """Join what the processes of a round saw.

    Raises InvalidRequestError for a round too short, ServerError where a request failed.
    """
    if failed := [each for log in logs for each in log.records if each.error is not None]:
        raise ServerError(f"{len(failed)} requests failed, the first with: {failed[0].error}")
    ready = [log.ready_s for log in logs]
    ends = [log.exhausted_s for log in logs if log.exhausted_s is not None]
    start_s = max((each for each in ready if each is not None), default=0.0)
    if None in ready or not ends or min(ends) <= start_s:
        raise InvalidRequestError(
            "requests ran out before every user had a token; accepted: a longer --round-seconds"
        )
    end_s = min(ends)
    num_tokens = sum(n for log in logs for time_s, n in log.arrivals if start_s < time_s <= end_s)
    ended = [each for log in logs for each in log.records if start_s < each.end_s <= end_s]
    begun_s = min(log.begun_s for log in logs)
    return SteadyRound(
        Window(begun_s, start_s, end_s, num_tokens),
        tuple(sorted(ended, key=lambda each: each.index)),
    )


class _Player:
    def __init__(self, client: AsyncClient, users: Users, work: Workload, others: Others) -> None:
        self._sender = Sender(client, work, on_tokens=self._note)
        self._users = users
        self._work = work
        self._others = others
        self._requests = iter(users.requests)
        self._without_token = set(users.first_requests)
        self._arrivals: list[tuple[float, int]] = []
        self._begun_s = time.monotonic()
        self._ready_s: float | None = None
        self._exhausted_s: float | None = None

    def log(self) -> UserLog:
        return UserLog(
            self._begun_s,
            self._sender.records,
            self._arrivals,
            self._ready_s,
            self._exhausted_s,
        )

    async def play(self, first: int) -> None:
        """Take one request after the other, then wait to be cancelled."""
        await self._sender.send(first, time.monotonic(), self._first_sampling(first))
        for request in self._requests:
            await self._sender.send(request, time.monotonic())
        if self._exhausted_s is None:
            self._exhausted_s = time.monotonic()
            self._others.tell_exhausted()
        await asyncio.Event().wait()

    def _first_sampling(self, first: int) -> Sampling:
        """The first to start has the longest answer: the others are there before it ends."""
        sampling = self._work.sampling_of(first)
        share = (self._users.num_users - first) / self._users.num_users
        return replace(sampling, max_tokens=max(2, round((sampling.max_tokens or 2) * share)))

    def _note(self, index: int, time_s: float, num_tokens: int) -> None:
        self._arrivals.append((time_s, num_tokens))
        if self._ready_s is None:
            self._without_token.discard(index)
            if not self._without_token:
                self._ready_s = time_s
