"""`specsched cost show`."""

from __future__ import annotations

import json as json_module

import typer

from specsched_client.cli._options import (
    JsonOption,
    RunDirOption,
    SchedulerOption,
    TimeoutOption,
)

cost_app = typer.Typer(
    help="See what steps cost, as profiled and as learned.", no_args_is_help=True
)


@cost_app.callback()
def _group() -> None:
    """Keeps `show` a command of its own."""


@cost_app.command("show")
def show(
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Draw each executor's cost by rows: as it was profiled and as steps turned out to take."""
    from specsched_client import SchedulerClient
    from specsched_client.cli._discovery import find_scheduler
    from specsched_client.cli._learning_views import print_cost, to_json

    _, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        answer = client.learning(timeout_s=timeout)
    if json:
        typer.echo(json_module.dumps(to_json(answer)))
    else:
        print_cost(answer)
