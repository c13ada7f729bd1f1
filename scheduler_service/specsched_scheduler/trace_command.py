"""`specsched trace`: a look into recorded traces."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from specsched_protocol.exit_codes import ExitCode

__all__ = ["trace"]


_T = TypeVar("_T")

_PathArgument = Annotated[Path, typer.Argument(help="A trace file, or the folder of --trace-dir.")]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

trace = typer.Typer(help="Look into recorded traces.", no_args_is_help=True, rich_markup_mode=None)


@trace.command("summary")
def summary(path: _PathArgument, json: _JsonOption = False) -> None:
    """Tell what a trace holds: files, steps, tokens, times, policies."""
    summarize = _reader("summarize")
    told = _read(lambda: summarize(path))
    if json:
        typer.echo(json_module.dumps(told))
        return
    width = max(map(len, told))
    for name, value in told.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {_text(value)}")


@trace.command("head")
def head(
    path: _PathArgument,
    num: Annotated[
        int, typer.Option("--num", "-n", min=1, help="So many steps, from the first one on.")
    ] = 10,
    json: _JsonOption = False,
) -> None:
    """Show the first steps, a line each; with --json the whole rows, one object a line."""
    if json:
        head_rows = _reader("head_rows")
        for row in _read(lambda: list(head_rows(path, num))):
            typer.echo(json_module.dumps(row))
        return
    read_head = _reader("read_head")
    _print_steps(_read(lambda: read_head(path, num)))


@trace.command("cost")
def cost(path: _PathArgument, json: _JsonOption = False) -> None:
    """Hold what steps were predicted to take against what they took.

    Bias and mean error of the profile, of the profile with its cost of context, and of what the
    scheduler promised with the decision, by size, requests and context; then of expected tokens.
    """
    truth = _read(lambda: _reader("cost_truth")(path))
    if json:
        typer.echo(json_module.dumps(truth))
        return
    _print_lines(_cost_lines(truth))
    tokens = truth["tokens"]
    typer.echo(
        f"expected tokens: bias {_share(tokens['bias'])} over {tokens['num_steps']:,} steps, at"
        f" worst {_share(tokens['worst_block'])} in a thousand"
    )


def _cost_lines(truth: Mapping[str, Any]) -> list[tuple[str, ...]]:
    lines = [("", "steps", "ms", *(f"{name} bias / error" for name in _PREDICTIONS))]
    groups = [("all", {"": truth["all"]})]
    groups += [(name, truth[f"by_{name}"]) for name in ("size", "requests", "context")]
    for name, group in groups:
        for value, figures in group.items():
            errors = [figures.get(each) for each in _PREDICTIONS]
            lines.append(
                (
                    f"{name} {value}".strip(),
                    f"{figures['num_steps']:,}",
                    f"{figures['measured_ms']:.3f}",
                    *(f"{_share(e['bias'])} / {e['error']:.1%}" if e else "-" for e in errors),
                )
            )
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


_PREDICTIONS = ("profile", "context", "learned")
_HEADERS = (
    "step",
    "requests",
    "drafts",
    "budget",
    "expected",
    "ms",
    "verified",
    "accepted",
    "tokens",
    "measured ms",
)


def _print_steps(steps: list[Any]) -> None:
    _print_lines([_HEADERS, *(tuple(map(_text, astuple(step))) for step in steps)])


def _print_lines(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells))


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _reader(name: str) -> Callable[..., Any]:
    """A function of the modules that need pyarrow."""
    try:
        from specsched_scheduler.trace import cost_truth, summary
    except ImportError as error:
        _fail(f"{error}: pip install 'specsched[trace]'", ExitCode.MISSING_PACKAGE)
    function: Callable[..., Any] = {**vars(summary), **vars(cost_truth)}[name]
    return function


def _read(read: Callable[[], _T]) -> _T:
    from specsched_scheduler.learning.errors import TraceError

    try:
        return read()
    except TraceError as error:
        _fail(str(error), ExitCode.BAD_INPUT)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
