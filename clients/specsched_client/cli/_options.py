"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from specsched_protocol.picture import PICTURE_FILE

from specsched_client._targets import DEFAULT_TARGET
from specsched_client.cli._completion import complete_scheduler


def _more_than_0(seconds: float) -> float:
    if not seconds > 0:
        raise typer.BadParameter(f"{seconds}; accepted: more than 0")
    return seconds


TargetOption = Annotated[
    str,
    typer.Option(envvar="SPECSCHED_TARGET", help="Address of the executor's API, host:port."),
]
RunDirOption = Annotated[
    Path | None,
    typer.Option(
        envvar="SPECSCHED_RUN_DIR",
        help="Directory in which executors and schedulers meet; none: the one of this user.",
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        help="One scheduler, by its name in the run directory, its socket's path or host:port.",
        autocompletion=complete_scheduler,
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(callback=_more_than_0, help="Seconds to wait for an answer.")
]
PlotOption = Annotated[
    Path | None,
    typer.Option(help=f"Draw a picture instead, to this file: {PICTURE_FILE}."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

__all__ = [
    "DEFAULT_TARGET",
    "JsonOption",
    "PlotOption",
    "RunDirOption",
    "SchedulerOption",
    "TargetOption",
    "TimeoutOption",
]
