"""Commands that other packages register in the entry-point group `specsched.commands`.

An entry point names a typer.Typer or a function. It is loaded when it is asked for, so that
`specsched generate` never imports a scheduler; one that cannot be loaded says what is missing.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from specsched_client.cli._exit_codes import ExitCode

GROUP = "specsched.commands"


class PluginGroup(TyperGroup):
    """Its own commands, and those of `specsched.commands` that do not share a name with one."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_plugins()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        own = super().get_command(ctx, cmd_name)
        plugin = _plugins().get(cmd_name)
        return own if own is not None or plugin is None else _load(plugin)


def _plugins() -> dict[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=GROUP)}


def _load(plugin: EntryPoint) -> Any:
    try:
        target = plugin.load()
    except (ImportError, AttributeError) as error:
        return _unavailable(plugin, error)
    if isinstance(target, typer.Typer):
        command = typer.main.get_command(target)
        command.name = plugin.name
        return command
    return _as_command(plugin.name, target)


def _as_command(name: str, function: Any) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(function)
    return typer.main.get_command(app)


def _unavailable(plugin: EntryPoint, error: Exception) -> Any:
    """A command that says why the real one is not there."""

    def explain() -> None:
        typer.echo(f"error: {plugin.name} cannot be loaded from {plugin.value}: {error}", err=True)
        raise typer.Exit(ExitCode.MISSING_PACKAGE)

    explain.__doc__ = f"(not available: {error})"
    command = _as_command(plugin.name, explain)
    # Options of the real command must not be refused as unknown before the reason is told.
    command.ignore_unknown_options = True
    command.allow_extra_args = True
    return command
