"""`specsched cost show`."""

from __future__ import annotations

import typer

from specsched_client.cli._options import (
    JsonOption,
    PlotOption,
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
    *,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Draw each executor's cost by rows: as it was profiled and as steps turned out to take."""
    from specsched_client.cli._learning_views import COST_VIEW, ask_learning, show_learning

    answer = ask_learning(run_dir, scheduler, timeout)
    show_learning(answer, COST_VIEW, as_json=json, picture=plot)
