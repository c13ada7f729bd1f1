"""One pass over the prompts under one policy, asked through the public client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from specsched_client import AsyncClient, AsyncSchedulerClient, Sampling

from scripts.demo.processes import DemoError
from scripts.demo.state import Answer, DemoState
from scripts.demo.summary import Round, difference
from scripts.demo.view import View

__all__ = ["Clients", "run_round", "warm_up", "watching"]

ANSWER_TIMEOUT_S = 300.0
DECISIONS_PER_SECOND = 20
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections to both processes."""

    executor: AsyncClient
    scheduler: AsyncSchedulerClient


async def warm_up(clients: Clients, policy: str, state: DemoState) -> None:
    """Answer all prompts shortly, each a little longer: batches of all sizes that will be seen."""
    await clients.scheduler.set_policy(policy)
    state.begin_round(policy, "warming up")
    async with asyncio.TaskGroup() as group:
        for place, answer in enumerate(state.answers, start=1):
            group.create_task(_ask(clients.executor, answer, place * WARM_UP_TOKENS))


async def run_round(
    clients: Clients, policy: str, max_tokens: int, state: DemoState, view: View | None
) -> Round:
    """Switch to `policy`, ask all prompts at once, return what the processes counted meanwhile.

    view: told of each answer; None: nobody is.
    """
    executor, scheduler = clients.executor, clients.scheduler
    await scheduler.set_policy(policy)
    before = (await executor.step_counters()).counters
    state.begin_round(policy)
    start_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for answer in state.answers:
            group.create_task(_ask(executor, answer, max_tokens, view))
    elapsed_s = time.monotonic() - start_s
    after = (await executor.step_counters()).counters
    (attachment,) = (await scheduler.status()).attachments
    return Round(
        policy=policy,
        counters=difference(after, before),
        elapsed_s=elapsed_s,
        plan_us_p50=attachment.counters.plan_us_p50,
        texts=tuple(answer.text for answer in state.answers),
    )


@contextlib.asynccontextmanager
async def watching(scheduler: AsyncSchedulerClient, state: DemoState) -> AsyncIterator[None]:
    """Keep the last decisions in `state` while the block runs."""
    watcher = asyncio.create_task(_watch(scheduler, state))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


async def _watch(scheduler: AsyncSchedulerClient, state: DemoState) -> None:
    async with contextlib.aclosing(scheduler.watch(max_per_second=DECISIONS_PER_SECOND)) as stream:
        async for watched in stream:
            state.decisions.append(watched)


async def _ask(
    executor: AsyncClient, answer: Answer, max_tokens: int, view: View | None = None
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
    messages = [{"role": "user", "content": answer.prompt.text}]
    async for delta in executor.stream(messages, sampling, timeout_s=ANSWER_TIMEOUT_S):
        answer.text += delta.text or ""
        answer.num_tokens += len(delta.token_ids)
        if delta.completion is not None:
            answer.finish_reason = delta.completion.finish_reason
    if answer.finish_reason not in {"stop", "length"}:
        raise DemoError(f"the answer to {answer.prompt.title!r} ended with {answer.finish_reason}")
    if view is not None:
        view.finished(answer)
