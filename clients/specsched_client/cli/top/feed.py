"""Reads executor and schedulers again and again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from specsched_protocol.v1 import scheduler_pb2

from specsched_client import AsyncSchedulerClient, SpecschedError
from specsched_client.cli._discovery import find_schedulers, run_dir_root
from specsched_client.cli._status_report import Report, gather_report

__all__ = ["Feed", "Reading"]

_MAX_DECISIONS = 120
_RETRY_S = 1.0

Decisions = Mapping[str, tuple[scheduler_pb2.WatchDecisionsResponse, ...]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What both processes told at `at_s`, on the monotonic clock.

    decisions: the newest of each scheduler, by its name, the oldest first.
    """

    at_s: float
    report: Report
    decisions: Decisions


class Feed:
    """Asks on demand, and watches the decisions of every scheduler there is meanwhile.

    A process that does not answer is told as such, one that appears is taken up. Used as an
    asynchronous context manager, on one event loop.
    """

    def __init__(
        self, target: str, run_dir: Path | None, scheduler: str | None, *, timeout_s: float
    ) -> None:
        self._target = target
        self._run_dir = run_dir
        self._scheduler = scheduler
        self._timeout_s = timeout_s
        self._decisions: dict[str, deque[scheduler_pb2.WatchDecisionsResponse]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in list(self._watches):
            await self._unwatch(name)

    async def read(self) -> Reading:
        """Ask everybody now. Raises InvalidRequestError for a run directory that is not ours."""
        found = find_schedulers(self._run_dir, self._scheduler)
        for name in self._watches.keys() - found.keys():
            await self._unwatch(name)
        for name in found.keys() - self._watches.keys():
            self._decisions[name] = deque(maxlen=_MAX_DECISIONS)
            self._watches[name] = asyncio.ensure_future(self._watch(name, found[name]))
        root = run_dir_root(self._run_dir)
        report = await gather_report(self._target, found, root, timeout_s=self._timeout_s)
        decisions = {name: tuple(newest) for name, newest in self._decisions.items()}
        return Reading(time.monotonic(), report, decisions)

    async def _watch(self, name: str, target: str) -> None:
        newest = self._decisions[name]
        async with AsyncSchedulerClient(target) as client:
            while True:
                with contextlib.suppress(SpecschedError):  # the report tells why
                    async for each in client.watch():
                        newest.append(each)
                await asyncio.sleep(_RETRY_S)

    async def _unwatch(self, name: str) -> None:
        watch = self._watches.pop(name)
        del self._decisions[name]
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
