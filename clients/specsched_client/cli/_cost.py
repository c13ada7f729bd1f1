"""`specsched cost show`."""

from __future__ import annotations

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
    from specsched_client.cli._learning_views import print_cost, show_learning

    show_learning(run_dir, scheduler, timeout, None if json else print_cost)
