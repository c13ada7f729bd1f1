"""Entry point: one-line errors, exit codes, and commands that other packages bring."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import typer

from specsched_client.cli._calibration import calibration_app
from specsched_client.cli._cost import cost_app
from specsched_client.cli._doctor import doctor
from specsched_client.cli._exit_codes import exit_code_of
from specsched_client.cli._generate import generate
from specsched_client.cli._lanes import diff, drain, lanes, promote
from specsched_client.cli._plugins import PluginGroup
from specsched_client.cli._policy import policy_app
from specsched_client.cli._status import status
from specsched_client.cli._top import top

if TYPE_CHECKING:
    from specsched_client._errors import SpecschedError

_HELP = """Generate text with an executor; watch and steer the schedulers beside it.

Exit codes: 0 done, 1 failed, 2 bad input, 3 unreachable, 4 timed out, 5 package missing,
130 interrupted.
"""

app = typer.Typer(
    name="specsched",
    help=_HELP,
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Panels cut what does not fit their columns, the names of variables above all.
    rich_markup_mode=None,
)
app.command()(generate)
app.command()(status)
app.command()(top)
app.command()(doctor)
app.command()(lanes)
app.command()(diff)
app.command()(promote)
app.command()(drain)
app.add_typer(policy_app, name="policy")
app.add_typer(calibration_app, name="calibration")
app.add_typer(cost_app, name="cost")


def run() -> None:
    """Run the command line; ends with SystemExit."""
    try:
        app()
    except Exception as error:
        shown = _shown(error)
        if shown is None:
            raise
        typer.echo(f"error: {shown}", err=True)
        sys.exit(exit_code_of(shown))


def _shown(error: Exception) -> SpecschedError | None:
    """What a user is told in place of a traceback; None for what is a defect."""
    from specsched_client._errors import InvalidRequestError, SpecschedError

    if isinstance(error, SpecschedError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        name = os.fsencode(error.filename).decode(errors="backslashreplace")
        return InvalidRequestError(f"{name}: {error.strerror}")
    if not isinstance(error, ValueError | TypeError):
        return None
    for argument in sys.argv[1:]:
        # How bytes that are not UTF-8 arrive; names of files may hold them, text may not.
        if any("\udc80" <= character <= "\udcff" for character in argument):
            raw = os.fsencode(argument).decode(errors="backslashreplace")
            return InvalidRequestError(f"argument {raw!r} is not UTF-8")
    return None
