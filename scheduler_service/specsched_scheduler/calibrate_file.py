"""`specsched calibrate TRACE`: fit a calibration to recorded drafts. Needs no server."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from specsched_protocol.console import to_stdout
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.picture import PICTURE_FILE, PictureError, check_picture, save_picture

from specsched_scheduler.decision.calibration import GREEDY, NUM_CLASSES
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.calibration.offline import TraceFit, calibrate_trace
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.document import (
    Entry,
    LearnedState,
    calibration_part,
    write_state,
)
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.learning.trace import read_trace

__all__ = ["SamplingClass", "calibrate"]


class SamplingClass(enum.StrEnum):
    """Of all rows of a trace that has no temperatures."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


def calibrate(  # noqa: PLR0917 - options of the command
    traces: Annotated[
        list[Path], typer.Argument(help="Recorded drafts: .npz files of `eval drafter --trace`.")
    ],
    sampling_class: Annotated[
        SamplingClass | None,
        typer.Option("--class", help="Class of all rows, where the trace has no temperatures."),
    ] = None,
    model: Annotated[str, typer.Option(help="Model that the result is for.")] = "",
    drafter: Annotated[str, typer.Option(help="Drafter that the result is for.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the learned state here, to be imported.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help=f"Draw reliability diagrams to this file: {PICTURE_FILE}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    """Fit temperature and intercept of each draft position.

    Errors are judged on requests that were left out of the fit.
    """
    is_greedy = None if sampling_class is None else sampling_class is SamplingClass.GREEDY
    try:
        if plot is not None:
            check_picture("--plot", plot)
        parts = _read(traces, is_greedy)
        fits = {_name(of_class): calibrate_trace(rows) for of_class, rows in parts.items()}
        if plot is not None:
            _plot(fits, plot)
        if out is not None:
            out.write_text(write_state(_state(fits, model, drafter)), encoding="utf-8")
    except PictureError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")
    if as_json:
        typer.echo(json.dumps({name: _answer(fit) for name, fit in fits.items()}))
        return
    for name, fit in fits.items():
        to_stdout().print(_table(name, fit))


def _read(traces: list[Path], is_greedy: bool | None) -> dict[int, Observations]:
    """The rows of all traces, by class. Raises OSError for what cannot be written or read."""
    parts: dict[int, Observations] = {}
    for trace in traces:
        try:
            for of_class, rows in read_trace(trace, is_greedy=is_greedy).items():
                held = parts.get(of_class)
                parts[of_class] = rows if held is None else held.joined(rows)
        except IsADirectoryError:
            _fail(f"{trace} is a folder; accepted: recorded drafts, .npz files")
        except OSError as error:
            _fail(f"{trace}: {error.strerror}")
        except (TraceError, ValueError) as error:
            _fail(f"{trace}: {error}")
    return parts


def _fail(message: str, code: int = ExitCode.BAD_INPUT) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def _name(of_class: int) -> str:
    return SamplingClass.GREEDY if of_class == GREEDY else SamplingClass.SAMPLED


def _plot(fits: dict[str, TraceFit], path: Path) -> None:
    from specsched_scheduler.learning.diagrams import reliability_figure

    save_picture("--plot", reliability_figure(fits), path)


def _state(fits: dict[str, TraceFit], model: str, drafter: str) -> LearnedState:
    k = len(next(iter(fits.values())).positions)
    calibration = Calibration.identity(k)
    num_rows = [0] * NUM_CLASSES
    for of_class in range(NUM_CLASSES):
        fit = fits.get(_name(of_class))
        if fit is not None:
            calibration = calibration.with_class(of_class, fit.fit.temperature, fit.fit.intercept)
            num_rows[of_class] = fit.num_rows
    part = calibration_part(calibration, tuple(num_rows))
    entry = Entry(model=model, drafter=drafter, max_draft_tokens=k, calibration=part)
    return LearnedState(entries=(entry,))


def _answer(fit: TraceFit) -> dict[str, Any]:
    return {
        "num_rows": fit.num_rows,
        "num_requests": fit.num_groups,
        "accepted_per_draft": fit.num_accepted,
        "expected_per_draft_raw": fit.expected_raw,
        "expected_per_draft_calibrated": fit.expected_calibrated,
        "positions": [
            {
                "temperature": float(fit.fit.temperature[each.position]),
                "intercept": float(fit.fit.intercept[each.position]),
                "is_kept": bool(fit.fit.is_kept[each.position]),
            }
            | asdict(each)
            for each in fit.positions
        ],
    }


def _table(name: str, fit: TraceFit) -> Table:
    title = f"{name}: {fit.num_rows} drafts of {fit.num_groups} requests"
    caption = (
        f"accepted per draft {fit.num_accepted:.3f}, expected {fit.expected_raw:.3f} raw,"
        f" {fit.expected_calibrated:.3f} calibrated; errors on held-out requests"
    )
    table = Table(
        "position",
        "drafts",
        "temperature",
        "intercept",
        "ECE raw",
        "ECE after",
        title=title,
        caption=caption,
    )
    for each in fit.positions:
        is_kept = fit.fit.is_kept[each.position]
        table.add_row(
            str(each.position),
            str(each.num_rows),
            f"{fit.fit.temperature[each.position]:.2f}" if is_kept else "-",
            f"{fit.fit.intercept[each.position]:+.2f}" if is_kept else "-",
            f"{each.error_raw:.2%}",
            f"{each.error_calibrated:.2%}",
        )
    return table
