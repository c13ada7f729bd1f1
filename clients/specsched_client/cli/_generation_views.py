"""How outputs are shown: live panels on a terminal, plain text in a pipe, or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

if TYPE_CHECKING:
    from specsched_client.cli._generation_run import Job

_REFRESH_PER_SECOND = 12


class View(Protocol):
    """Shows jobs while the block runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, job: Job, text: str) -> None:
        """New text of a job."""

    def finish(self, job: Job) -> None:
        """The end of a job."""


def choose_view(jobs: Sequence[Job], *, as_json: bool) -> View:
    """The view for this output: JSON when asked for, panels for several jobs on a terminal."""
    if as_json:
        return JsonView()
    console = Console()
    if console.is_terminal and len(jobs) > 1:
        return PanelView(jobs, console)
    return PlainView(jobs)


class _Quiet:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class PlainView(_Quiet):
    """Text alone: as it comes for one job; for several, each when it is finished, in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._num_printed = 0
        self._finished: set[int] = set()

    def show(self, job: Job, text: str) -> None:
        """Print the text of a single job."""
        del job
        if len(self._jobs) == 1:
            sys.stdout.write(text)
            sys.stdout.flush()

    def finish(self, job: Job) -> None:
        """Print what is finished and next in order."""
        if len(self._jobs) == 1:
            if job.text:
                print()  # noqa: T201 - the output of the command
            _print_error(job)
            return
        self._finished.add(job.place)
        while self._num_printed < len(self._jobs):
            following = self._jobs[self._num_printed]
            if following.place not in self._finished:
                return
            self._print(following)
            self._num_printed += 1

    def _print(self, job: Job) -> None:
        print(f"--- {_one_line(job.title)}")  # noqa: T201 - the output of the command
        print("".join(job.text), flush=True)  # noqa: T201
        _print_error(job)


def _print_error(job: Job) -> None:
    if job.error is not None:
        print(f"error: {job.error}", file=sys.stderr)  # noqa: T201


class JsonView(_Quiet):
    """A JSON object a line, for each job as it finishes."""

    def show(self, job: Job, text: str) -> None:
        """Nothing before the end."""

    def finish(self, job: Job) -> None:
        """Print the job."""
        print(json.dumps(_to_json(job), ensure_ascii=False), flush=True)  # noqa: T201


class PanelView:
    """A panel for each job, side by side in time."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._jobs = jobs
        self._live = Live(
            console=console,
            refresh_per_second=_REFRESH_PER_SECOND,
            get_renderable=self._render,
            vertical_overflow="ellipsis",
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The last picture stays on the screen, so it must not be cut to its height.
        self._live.vertical_overflow = "visible"
        self._live.stop()

    def show(self, job: Job, text: str) -> None:
        """The next refresh shows it."""

    def finish(self, job: Job) -> None:
        """The next refresh shows it."""

    def _render(self) -> Group:
        return Group(*(_panel(job) for job in self._jobs))


def _panel(job: Job) -> Panel:
    body = Text("".join(job.text))
    if job.error is not None:
        body.append(f"\nerror: {job.error}", style="red")
    done = job.completion is not None or job.error is not None
    return Panel(
        body,
        title=Text(_one_line(job.title), style="bold"),
        title_align="left",
        subtitle=Text(_facts(job), style="dim"),
        subtitle_align="right",
        border_style="green" if done else "dim",
    )


def _facts(job: Job) -> str:
    """E.g. "41 tokens, 30.1 tokens/s, 12 of 20 drafts accepted, stop"."""
    completion = job.completion
    if completion is None:
        return ""
    parts = [f"{completion.num_output_tokens} tokens"]
    if job.seconds > 0:
        parts.append(f"{completion.num_output_tokens / job.seconds:.1f} tokens/s")
    if completion.num_draft_tokens:
        accepted, drafts = completion.num_accepted_tokens, completion.num_draft_tokens
        parts.append(f"{accepted} of {drafts} drafts accepted")
    return ", ".join([*parts, completion.finish_reason])


def _one_line(text: str, width: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _to_json(job: Job) -> dict[str, object]:
    told: dict[str, object] = {
        "index": job.index,
        "output_index": job.output_index,
        "prompt": job.prompt,
    }
    completion = job.completion
    if completion is None:
        return {**told, "error": str(job.error)}
    told |= {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "matched_stop": completion.matched_stop,
        "request_id": completion.request_id,
        "token_ids": completion.token_ids,
        "num_prompt_tokens": completion.num_prompt_tokens,
        "num_output_tokens": completion.num_output_tokens,
        "num_draft_tokens": completion.num_draft_tokens,
        "num_accepted_tokens": completion.num_accepted_tokens,
        "seconds": round(job.seconds, 4),
    }
    for name, values in (
        ("logprobs", completion.logprobs),
        ("prompt_logprobs", completion.prompt_logprobs),
    ):
        if values:
            told[name] = [None if each is None else asdict(each) for each in values]
    return told
