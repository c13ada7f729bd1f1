"""`specsched calibration show|export|import|freeze|resume`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from specsched_client.cli._options import (
    JsonOption,
    PlotOption,
    RunDirOption,
    SchedulerOption,
    TimeoutOption,
)

calibration_app = typer.Typer(
    help="See, keep or freeze what a scheduler learned: calibration and cost.",
    no_args_is_help=True,
)


@calibration_app.command("show")
def show(
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    *,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Draw what the confidences of each executor's drafter turned out to be worth."""
    from specsched_client.cli._learning_views import CALIBRATION_VIEW, ask_learning, show_learning

    answer = ask_learning(run_dir, scheduler, timeout)
    show_learning(answer, CALIBRATION_VIEW, as_json=json, picture=plot)


@calibration_app.command("export")
def export(
    file: Annotated[
        Path | None, typer.Argument(help="Where to write it; none: to standard output.")
    ] = None,
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Write everything that was learned as one JSON document.

    Without FILE the document itself is the output, with or without --json.
    """
    from specsched_client import SchedulerClient
    from specsched_client._errors import InvalidRequestError
    from specsched_client.cli._discovery import find_scheduler

    name, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        document = client.export_state(timeout_s=timeout)
    if file is None:
        typer.echo(document, nl=False)
        return
    try:
        file.write_text(document, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{file}: {error.strerror}") from error
    if json:
        typer.echo(json_module.dumps({"scheduler": name, "file": str(file)}))


@calibration_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Of `export` or of `specsched calibrate --out`.")],
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Have a scheduler go on from what was learned before; a broken file changes nothing."""
    from specsched_client import SchedulerClient
    from specsched_client._errors import InvalidRequestError
    from specsched_client.cli._discovery import find_scheduler

    try:
        document = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise InvalidRequestError(f"{file}: {reason}") from error
    name, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        try:
            answer = client.import_state(document, timeout_s=timeout)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{file}: {error}") from error
    if json:
        counts = {"entries": answer.num_entries, "applied": answer.num_applied}
        typer.echo(json_module.dumps({"scheduler": name, **counts}))
        return
    typer.echo(f"{name}: {answer.num_entries} read, {answer.num_applied} in use now")


@calibration_app.command("freeze")
def freeze(
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Keep calibration and cost as they are."""
    _set_frozen(run_dir, scheduler, timeout, frozen=True, as_json=json)


@calibration_app.command("resume")
def resume(
    run_dir: RunDirOption = None,
    scheduler: SchedulerOption = None,
    timeout: TimeoutOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Go on learning."""
    _set_frozen(run_dir, scheduler, timeout, frozen=False, as_json=json)


def _set_frozen(
    run_dir: Path | None, scheduler: str | None, timeout: float, *, frozen: bool, as_json: bool
) -> None:
    from specsched_client import SchedulerClient
    from specsched_client.cli._discovery import find_scheduler

    name, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        answer = client.set_learning(frozen=frozen, timeout_s=timeout)
    if as_json:
        told = {"frozen": answer.frozen, "was_frozen": answer.was_frozen}
        typer.echo(json_module.dumps({"scheduler": name, **told}))
    else:
        typer.echo(f"{name}: {'frozen' if answer.frozen else 'learning'}")
