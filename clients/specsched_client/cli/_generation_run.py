"""Runs the prompts of `specsched generate` side by side and shows them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from specsched_client import (
    AsyncClient,
    Completion,
    Delta,
    InvalidRequestError,
    Sampling,
    ServerError,
    SpecschedError,
)
from specsched_client._errors import NoChatTemplateError
from specsched_client.cli._generation_views import View, choose_view


@dataclass(slots=True)
class Job:
    """One output of a prompt and what has come of it.

    place: among all jobs. index: of the prompt. output_index: among the prompt's outputs. title:
    what is shown above it. seconds: from sending the prompt to the end of this output.
    """

    place: int
    index: int
    prompt: str
    title: str
    output_index: int = 0
    text: list[str] = field(default_factory=list)
    completion: Completion | None = None
    error: SpecschedError | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptJobs:
    """A prompt and the jobs of its outputs, by their index."""

    prompt: str | list[dict[str, str]]
    jobs: list[Job]


def jobs_of(
    texts: Sequence[str], prompts: Sequence[str | list[dict[str, str]]], num_outputs: int
) -> list[PromptJobs]:
    """Jobs of each prompt, titled with its text."""
    work = []
    for index, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        jobs = []
        for output in range(num_outputs):
            title = text if num_outputs == 1 else f"[{output + 1}/{num_outputs}] {text}"
            jobs.append(Job(index * num_outputs + output, index, text, title, output))
        work.append(PromptJobs(prompt, jobs))
    return work


async def run_jobs(
    prompts: Sequence[PromptJobs],
    sampling: Sampling,
    *,
    target: str,
    timeout_s: float | None,
    as_json: bool,
) -> list[SpecschedError]:
    """Run all prompts at once, showing each error as it comes. Returns the errors."""
    jobs = [job for prompt in prompts for job in prompt.jobs]
    view = choose_view(jobs, as_json=as_json)
    async with AsyncClient(target) as client:
        with view:
            await asyncio.gather(
                *(_run(client, each, sampling, timeout_s, view) for each in prompts)
            )
    _tell_of_cut(jobs, sampling)
    return [job.error for job in jobs if job.error is not None]


def _tell_of_cut(jobs: Sequence[Job], sampling: Sampling) -> None:
    """Say on stderr which outputs ended before `max_tokens`, as the model's context was full."""
    for job in jobs:
        done = job.completion
        if done is None or done.finish_reason != "length" or sampling.max_tokens is None:
            continue
        if done.num_output_tokens < sampling.max_tokens:
            context = done.num_prompt_tokens + done.num_output_tokens
            typer.echo(
                f"note: cut after {done.num_output_tokens} of {sampling.max_tokens} tokens:"
                f" prompt and output fill the context of {context} tokens",
                err=True,
            )


async def _run(
    client: AsyncClient, work: PromptJobs, sampling: Sampling, timeout_s: float | None, view: View
) -> None:
    start_s = time.monotonic()
    try:
        stream = client.stream(work.prompt, sampling, timeout_s=timeout_s)
        async with contextlib.aclosing(stream) as deltas:
            async for delta in deltas:
                _show(work.jobs[delta.index], delta, start_s, view)
    except SpecschedError as error:
        for job in work.jobs:
            if job.completion is None:
                job.error, job.seconds = _with_option(error), time.monotonic() - start_s
                view.finish(job)


def _with_option(error: SpecschedError) -> SpecschedError:
    if isinstance(error, NoChatTemplateError):
        return InvalidRequestError(f"{error}, with --raw")
    return error


def _show(job: Job, delta: Delta, start_s: float, view: View) -> None:
    job.text.append(delta.text or "")
    job.completion = delta.completion
    view.show(job, delta.text or "")
    if delta.completion is not None:
        if delta.completion.finish_reason == "abort":
            job.error = ServerError("the request was aborted before its end")
        job.seconds = time.monotonic() - start_s
        view.finish(job)
