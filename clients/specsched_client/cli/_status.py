"""`specsched status`."""

from __future__ import annotations

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


def status(
    target: TargetOption = DEFAULT_TARGET,
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show the executor and its schedulers, as far as they answer.

    Exits with 3 when none of them answers.
    """
    import asyncio

    from specsched_client.cli._discovery import find_schedulers, run_dir_root
    from specsched_client.cli._status_report import gather_report
    from specsched_client.cli._status_views import print_report

    found = find_schedulers(run_dir, scheduler)
    root = run_dir_root(run_dir)
    report = asyncio.run(gather_report(target, found, root, timeout_s=timeout))
    print_report(report, root, as_json=json)
    if not report.anyone_answered:
        raise typer.Exit(ExitCode.UNREACHABLE)
