"""Runs the prompts of `specsched generate` side by side and shows them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from specsched_client import AsyncClient, Completion, Sampling, ServerError, SpecschedError
from specsched_client.cli._generation_views import View, choose_view


@dataclass(slots=True)
class Job:
    """One prompt and what has come of it. `seconds`: from sending it to its end."""

    index: int
    title: str
    prompt: str | list[dict[str, str]]
    text: list[str] = field(default_factory=list)
    completion: Completion | None = None
    error: SpecschedError | None = None
    seconds: float = 0.0


async def run_jobs(
    jobs: Sequence[Job],
    sampling: Sampling,
    *,
    target: str,
    timeout_s: float | None,
    as_json: bool,
) -> list[SpecschedError]:
    """Run all prompts at once, showing each error as it comes. Returns the errors."""
    view = choose_view(jobs, as_json=as_json)
    async with AsyncClient(target) as client:
        with view:
            await asyncio.gather(*(_run(client, job, sampling, timeout_s, view) for job in jobs))
    return [job.error for job in jobs if job.error is not None]


async def _run(
    client: AsyncClient, job: Job, sampling: Sampling, timeout_s: float | None, view: View
) -> None:
    start_s = time.monotonic()
    try:
        stream = client.stream(job.prompt, sampling, timeout_s=timeout_s)
        async with contextlib.aclosing(stream) as deltas:
            async for delta in deltas:
                job.text.append(delta.text or "")
                job.completion = delta.completion
                view.show(job, delta.text or "")
        if job.completion is not None and job.completion.finish_reason == "abort":
            job.error = ServerError("the request was aborted before its end")
    except SpecschedError as error:
        job.error = error
    job.seconds = time.monotonic() - start_s
    view.finish(job)
