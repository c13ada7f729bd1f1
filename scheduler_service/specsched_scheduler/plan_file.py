"""`specsched plan FILE`: what would be decided for steps described in a file. Needs no server."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table
from specsched_protocol.console import to_stdout
from specsched_protocol.exit_codes import ExitCode

from specsched_scheduler.decision import (
    DecisionError,
    DecisionFlags,
    DecisionOutcome,
    PolicyFailedError,
)
from specsched_scheduler.decision.wire import DEFAULT_POLICY, decide_message
from specsched_scheduler.plan_document import PlanDocument, PlanEntry, read_plan_document

__all__ = ["plan", "plan_text"]

_MAX_RUNS_SHOWN = 8


def plan(
    file: Annotated[Path, typer.Argument(help="Plan requests as JSON; - reads standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    """Decide the steps of FILE: one plan request, or a list of them.

    Exits with 1 where a policy fails.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        document = read_plan_document(text)
        outcomes = _decide(document)
    except OSError as error:
        _fail(f"{file}: {error.strerror}", ExitCode.BAD_INPUT)
    except UnicodeDecodeError as error:
        _fail(f"{file}: not UTF-8: {error.reason} at byte {error.start}", ExitCode.BAD_INPUT)
    except PolicyFailedError as error:
        _fail(f"{file}: {error}", ExitCode.FAILED)
    except DecisionError as error:
        _fail(f"{file}: {error}", ExitCode.BAD_INPUT)
    if as_json:
        typer.echo(_to_json(document, outcomes))
    else:
        to_stdout().print(_table(document, outcomes))


def plan_text(text: str) -> str:
    """The JSON answer to a JSON document. Raises DecisionError."""
    document = read_plan_document(text)
    return _to_json(document, _decide(document))


def _fail(message: str, exit_code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(exit_code)


def _decide(document: PlanDocument) -> list[DecisionOutcome]:
    return [_decide_entry(entry) for entry in document.entries]


def _decide_entry(entry: PlanEntry) -> DecisionOutcome:
    try:
        return decide_message(entry.request)[0]
    except DecisionError as error:
        kind = PolicyFailedError if isinstance(error, PolicyFailedError) else DecisionError
        raise kind(f"{entry.where}: {error}" if entry.where else str(error)) from error


def _to_json(document: PlanDocument, outcomes: list[DecisionOutcome]) -> str:
    answers = [
        ({"name": entry.name} if entry.name else {}) | _answer(outcome)
        for entry, outcome in zip(document.entries, outcomes, strict=True)
    ]
    return json.dumps(answers if document.is_list else answers[0], allow_nan=False)


def _answer(outcome: DecisionOutcome) -> dict[str, Any]:
    return {
        "budget": outcome.budget,
        "verify_lens": outcome.verify_lens.tolist(),
        "max_verify_len": outcome.max_verify_len,
        "model_state": outcome.model_state.name.lower(),
        "repaired": outcome.num_repaired,
        "expected_tokens": outcome.expected_tokens,
        "expected_ms": outcome.expected_ms,
        "policy": outcome.policy,
        "flags": _flag_names(outcome.flags),
    }


def _flag_names(flags: DecisionFlags) -> list[str]:
    return [str(flag.name).lower() for flag in DecisionFlags if flag and flag in flags]


def _table(document: PlanDocument, outcomes: list[DecisionOutcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    for header in ("request", "policy", "budget", "verify_lens", "tokens", "ms", "model", "flags"):
        # Folded, not cut, where the terminal is narrow; headers and common words stay whole.
        min_width = len(DEFAULT_POLICY) if header == "policy" else len(header)
        table.add_column(header, overflow="fold", min_width=min_width)
    for index, (entry, outcome) in enumerate(zip(document.entries, outcomes, strict=True)):
        table.add_row(
            entry.name or str(index),
            outcome.policy,
            str(outcome.budget),
            _shorten(outcome.verify_lens.tolist()),
            f"{outcome.expected_tokens:.2f}",
            "" if outcome.expected_ms is None else f"{outcome.expected_ms:.3f}",
            outcome.model_state.name.lower(),
            " ".join(_flag_names(outcome.flags)),
        )
    return table


def _shorten(lens: list[int]) -> str:
    """Runs of equal lengths as LENGTHxTIMES."""
    counted = [(length, len(list(run))) for length, run in itertools.groupby(lens)]
    runs = [f"{length}x{times}" if times > 1 else str(length) for length, times in counted]
    return " ".join(runs[:_MAX_RUNS_SHOWN]) + (" ..." if len(runs) > _MAX_RUNS_SHOWN else "")
