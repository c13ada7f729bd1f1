"""Entry point: one-line errors, exit codes, and commands that other packages bring."""

from __future__ import annotations

import sys

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


def main() -> None:
    """Run the command line."""
    try:
        app()
    except Exception as error:
        from specsched_client._errors import SpecschedError

        if not isinstance(error, SpecschedError):
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(exit_code_of(error))
