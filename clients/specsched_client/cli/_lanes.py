"""`specsched lanes`, `diff`, `promote` and `drain`: who is followed, who else is there."""

from __future__ import annotations

from typing import Annotated

import typer
from specsched_protocol.exit_codes import ExitCode

from specsched_client._targets import LANE_TIMEOUT_S
from specsched_client.cli._completion import complete_scheduler
from specsched_client.cli._options import (
    DEFAULT_TARGET,
    JsonOption,
    RunDirOption,
    TargetOption,
    TimeoutOption,
)

NameArgument = Annotated[
    str,
    typer.Argument(
        help="Name of the scheduler in the run directory, its socket or host:port.",
        autocompletion=complete_scheduler,
    ),
]


def lanes(
    target: TargetOption = DEFAULT_TARGET,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """List the schedulers attached to an executor: who is followed, who shadows."""
    from specsched_client import Client
    from specsched_client.cli._lane_views import print_lanes

    with Client(target) as client:
        print_lanes(client.schedulers(timeout_s=timeout), as_json=json)


def diff(
    target: TargetOption = DEFAULT_TARGET,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Compare what the shadows decided with what was done, under the outcome each step had."""
    from specsched_client import Client
    from specsched_client.cli._lane_views import print_diff

    with Client(target) as client:
        print_diff(client.schedulers(timeout_s=timeout), as_json=json)


def promote(
    name: NameArgument,
    run_dir: RunDirOption = None,
    timeout: TimeoutOption = LANE_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Have executors follow this scheduler, from the first step whose plan it has ready.

    Promoting the previous one again rolls back. Exits with 1 where an executor could not do it.
    """
    from specsched_client import SchedulerClient
    from specsched_client.cli._discovery import find_scheduler
    from specsched_client.cli._lane_views import print_changes

    name, target = find_scheduler(run_dir, name)
    with SchedulerClient(target) as client:
        changes = client.promote(timeout_s=timeout).executors
    if not print_changes(name, changes, as_json=json):
        raise typer.Exit(ExitCode.FAILED)


def drain(
    name: NameArgument,
    run_dir: RunDirOption = None,
    timeout: TimeoutOption = LANE_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Have executors follow the best shadow instead of this scheduler, which goes on as a shadow.

    Exits with 1 where an executor has no other that is fit.
    """
    from specsched_client import SchedulerClient
    from specsched_client.cli._discovery import find_scheduler
    from specsched_client.cli._lane_views import print_changes

    name, target = find_scheduler(run_dir, name)
    with SchedulerClient(target) as client:
        changes = client.drain(timeout_s=timeout).executors
    if not print_changes(name, changes, as_json=json):
        raise typer.Exit(ExitCode.FAILED)
