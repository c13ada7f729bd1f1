"""Client processes that share the users of a round: one is too slow for thousands of deltas."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from specsched_client._async_client import AsyncClient
from specsched_client._errors import ConnectionFailedError, ServerError, SpecschedError

from .round import first_error
from .sender import SteadyTimes, Workload
from .steady import UserLog, Users, run_users, shares_of

__all__ = ["ClientProcesses"]

_STOP = "stop"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Job:
    """What a process has to do in a round."""

    users: Users
    work: Workload


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error that a process met; errors themselves do not travel."""

    message: str
    is_connection: bool

    def error(self) -> SpecschedError:
        kind = ConnectionFailedError if self.is_connection else ServerError
        return kind(self.message)


class ClientProcesses:
    """Processes with a connection to one executor each, ready for rounds until `close`."""

    def __init__(self, target: str, num_processes: int) -> None:
        # Spawned, since gRPC does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, target), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, target: str, num_processes: int) -> AsyncIterator[ClientProcesses]:
        """Start them; at the end they are told to end."""
        processes = cls(target, num_processes)
        try:
            yield processes
        finally:
            processes.close()

    def close(self) -> None:
        """End the processes, whatever they do."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()

    async def run(self, num_users: int, work: Workload, times: SteadyTimes) -> list[UserLog]:
        """A steady round. Raises SpecschedError."""
        shares = shares_of(num_users, len(self._connections))
        busy = self._connections[: len(shares)]
        for connection, users in zip(busy, shares, strict=True):
            connection.send(_Job(users, work))
        try:
            ready_s = max(await _all_of([_receive(each, float) for each in busy]))
            logs = asyncio.ensure_future(_all_of([_receive(each, UserLog) for each in busy]))
            # A measurement that is interrupted asks for none of them.
            logs.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Who has anything to say before the end has failed.
            await asyncio.wait([logs], timeout=max(0.0, times.end_s(ready_s) - time.monotonic()))
        finally:
            for connection in busy:
                with contextlib.suppress(OSError):
                    connection.send(_STOP)
        return await logs


async def _all_of(receiving: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """What each receives; the first error ends the waiting for all."""
    async with first_error(), asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in receiving]
    return [task.result() for task in tasks]


async def _receive(connection: Connection, kind: type[_T]) -> _T:
    try:
        answer = await asyncio.to_thread(connection.recv)
    except (EOFError, OSError):
        raise ServerError("a client process of this measurement ended") from None
    if isinstance(answer, _Failure):
        raise answer.error()
    if not isinstance(answer, kind):
        raise ServerError(f"a client process answered {answer!r}")
    return answer


# ===================== In the process =====================


class _OtherProcesses:
    """The others, behind the connection to the process that measures."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell_ready(self, ready_s: float) -> None:
        """See Others."""
        self._connection.send(ready_s)

    async def wait_for_end(self) -> None:
        """See Others."""
        await asyncio.to_thread(self._connection.recv)


def _serve(connection: Connection, target: str) -> None:
    # Ctrl-C is for the process that measures, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        asyncio.run(_run_jobs(connection, target))


async def _run_jobs(connection: Connection, target: str) -> None:
    others = _OtherProcesses(connection)
    async with AsyncClient(target) as client:
        while True:
            job: _Job = await asyncio.to_thread(connection.recv)
            try:
                log = await run_users(client, job.users, job.work, others)
            except SpecschedError as error:
                # A failed measurement ends, and a thread still waits for the end of the round.
                connection.send(_Failure(str(error), isinstance(error, ConnectionFailedError)))
                return
            connection.send(log)
