"""`specsched top`."""

from __future__ import annotations

from typing import Annotated

import typer
from specsched_protocol.exit_codes import ExitCode

from specsched_client.cli._options import (
    DEFAULT_TARGET,
    JsonOption,
    RunDirOption,
    SchedulerOption,
    TargetOption,
    TimeoutOption,
)


def top(
    target: TargetOption = DEFAULT_TARGET,
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    *,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two readings.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many frames; none: with Ctrl-C.")
    ] = None,
    timeout: TimeoutOption = 2.0,
    json: JsonOption = False,
) -> None:
    """Watch an executor and its schedulers: load, plans, drafts, decisions as they are made.

    On a terminal one frame takes the place of the other; else, and with --json, one follows the
    other. Ctrl-C ends it. Exits with 3 when nobody answered in the last frame.
    """
    from specsched_client.cli.top.feed import Feed
    from specsched_client.cli.top.showing import show_frames

    feed = Feed(target, run_dir, scheduler, timeout_s=timeout)
    last = show_frames(feed, interval_s=interval, count=count, as_json=json)
    if last is not None and not last.anyone_answered:
        raise typer.Exit(ExitCode.UNREACHABLE)
