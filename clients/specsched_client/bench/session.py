"""Rounds of several variants, interleaved in one server session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from specsched_client._async_client import AsyncClient
from specsched_client._errors import InvalidRequestError
from specsched_client._sampling import Sampling
from specsched_client._scheduler_client import AsyncSchedulerClient

from .borrowed_policy import BorrowedPolicy
from .counters import counted_between, plan_latency, read_counters
from .load import ClosedLoop, Load
from .processes import ClientProcesses
from .prompts import BenchPrompt, encode_prompts
from .records import RequestRecord
from .round import run_round
from .sender import Workload
from .server_facts import ExecutorFacts, ask_executor
from .steady import Alone, Window, run_users, shares_of, steady_round
from .summary import RoundResult

__all__ = ["NoProgress", "Progress", "Session", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """What is compared. target: executor's address. policy: set before each round; None: as is.

    is_scheduled: whether the session's scheduler decides for it.
    """

    name: str
    target: str
    policy: str | None = None
    is_scheduled: bool = True


class Progress(Protocol):
    """Is told how far a measurement is."""

    def begin(self, title: str, num_requests: int) -> None:
        """A round begins; num_requests: 0: nobody knows how many."""

    def advance(self) -> None:
        """A request ended."""


class NoProgress:
    """Shows nothing."""

    def begin(self, title: str, num_requests: int) -> None:
        """See Progress."""

    def advance(self) -> None:
        """See Progress."""


class Session:
    """Open connections to the executors of all variants and to the scheduler, if there is one.

    processes: by target, who sends the requests of steady rounds; none: this process.
    """

    def __init__(
        self,
        clients: Mapping[str, AsyncClient],
        scheduler: AsyncSchedulerClient | None,
        progress: Progress,
        processes: Mapping[str, ClientProcesses] | None = None,
    ) -> None:
        self._clients = clients
        self._processes = processes or {}
        self._scheduler = scheduler
        self._policy = BorrowedPolicy(scheduler) if scheduler is not None else None
        self._progress = progress

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        variants: Sequence[Variant],
        scheduler_target: str | None,
        progress: Progress,
        *,
        num_processes: int = 1,
    ) -> AsyncIterator[Session]:
        """Connect; at the end the policy is put back as `put_back_policy` does.

        num_processes: that send the requests of steady rounds to each executor.
        """
        async with AsyncExitStack() as stack:
            clients, processes = {}, {}
            for target in dict.fromkeys(variant.target for variant in variants):
                clients[target] = await stack.enter_async_context(AsyncClient(target))
                if num_processes > 1:
                    opening = ClientProcesses.open(target, num_processes)
                    processes[target] = await stack.enter_async_context(opening)
            scheduler = None
            if scheduler_target is not None:
                scheduler = AsyncSchedulerClient(scheduler_target)
                await stack.enter_async_context(scheduler)
            session = cls(clients, scheduler, progress, processes)
            stack.push_async_callback(session.put_back_policy)
            yield session

    def client(self, target: str) -> AsyncClient:
        """The connection to an executor."""
        return self._clients[target]

    async def executors(self) -> list[ExecutorFacts]:
        """What each executor tells of itself, in the order of the variants."""
        return [await ask_executor(client, target) for target, client in self._clients.items()]

    async def workload(
        self,
        target: str,
        prompts: Sequence[BenchPrompt],
        sampling: Sampling,
        *,
        seed: int | None,
        timeout_s: float | None,
    ) -> Workload:
        """Requests as the tokenizer of `target` encodes them; how many is for each load to say."""
        codec = await self.client(target).tokenizer()
        return Workload(
            prompts=encode_prompts(list(prompts), codec),
            num_requests=0,
            sampling=sampling,
            seed=seed,
            timeout_s=timeout_s,
        )

    async def put_back_policy(self) -> None:
        """Have the scheduler decide by the policy found, unless somebody else set another one."""
        if self._policy is not None:
            await self._policy.put_back()

    async def measure(
        self,
        variants: Sequence[Variant],
        load: Load,
        work: Workload,
        *,
        num_repeats: int,
        warm_up: Workload | None,
    ) -> dict[str, list[RoundResult]]:
        """Variant name -> its rounds. Each repeat runs all variants, every other one backwards.

        So a machine that grows slower or faster favours none. Raises SpecschedError.
        """
        if warm_up is not None:
            await self.warm_up(variants, load, warm_up)
        rounds: dict[str, list[RoundResult]] = {variant.name: [] for variant in variants}
        for repeat in range(num_repeats):
            title = f"{load}, {repeat + 1}/{num_repeats}"
            for name, one in (await self.run_repeat(variants, load, work, repeat, title)).items():
                rounds[name].append(one)
        return rounds

    async def warm_up(
        self, variants: Sequence[Variant], load: Load, work: Workload
    ) -> dict[str, RoundResult]:
        """Variant name -> a round of it that is not to be counted."""
        return {
            variant.name: await self._run(
                variant, load, work, f"{load}, warm-up, {variant.name}", 0
            )
            for variant in variants
        }

    async def run_repeat(
        self, variants: Sequence[Variant], load: Load, work: Workload, repeat: int, title: str
    ) -> dict[str, RoundResult]:
        """Variant name -> a round of it. Where `repeat` is odd they run backwards."""
        order = variants if repeat % 2 == 0 else tuple(reversed(variants))
        ran = {
            variant.name: await self._run(variant, load, work, f"{title}, {variant.name}", repeat)
            for variant in order
        }
        return {variant.name: ran[variant.name] for variant in variants}

    async def _run(
        self, variant: Variant, load: Load, work: Workload, title: str, repeat: int
    ) -> RoundResult:
        self._progress.begin(title, work.num_requests)
        if variant.policy is not None and self._policy is not None:
            await self._policy.set(variant.policy)
        client = self._clients[variant.target]
        before = await read_counters(client)
        records, window = await self._send(variant.target, load, work)
        after = await read_counters(client)
        status = await self._scheduler.status() if self._scheduler is not None else None
        if self._policy is not None and status is not None:
            self._policy.require_own(status.policy)
        return RoundResult(
            repeat=repeat,
            records=tuple(records),
            counted=counted_between(before, after),
            plan_latency=plan_latency(status if variant.is_scheduled else None),
            load_average=os.getloadavg()[0],
            window=window,
        )

    async def _send(
        self, target: str, load: Load, work: Workload
    ) -> tuple[Sequence[RequestRecord], Window | None]:
        client, times = self._clients[target], work.steady
        if times is None:
            return await run_round(client, load, work, self._progress.advance), None
        if not isinstance(load, ClosedLoop):
            raise InvalidRequestError(f"{load}: accepted for steady rounds: a closed loop")
        processes = self._processes.get(target)
        if processes is not None:
            logs = await processes.run(load.concurrency, work, times)
        else:
            (users,) = shares_of(load.concurrency, 1)
            logs = [await run_users(client, users, work, Alone(times))]
        ran = steady_round(logs, times)
        return ran.records, ran.window
