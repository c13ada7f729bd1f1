"""Commands that other packages register in the entry-point group `specsched.commands`.

An entry point names a typer.Typer or a function. It is loaded when it is run or asked for its own
help, so that `specsched generate` never imports a scheduler; one that cannot be loaded says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from specsched_protocol.exit_codes import ExitCode
from typer.core import TyperGroup

GROUP: Final = "specsched.commands"

SUMMARIES: Final = {
    "bench": "Measure a running executor under load.",
    "calibrate": "Fit temperature and intercept of each draft position.",
    "eval": "Measure a drafter by real generation.",
    "executor": "Serve a model; attach to schedulers in the run directory.",
    "plan": "Decide the steps of FILE: one plan request, or a list of them.",
    "replay": "Decide recorded steps by another policy and compare: tokens per second and regret.",
    "scheduler": "Run a scheduler that executors on this machine attach to.",
    "trace": "Look into recorded traces.",
    "train": "Make a drafter for a target.",
}
"""First lines of the help of commands known by name, so that a list does not import them all."""


_WHOLE: Final = 1000
"""More letters than any summary has."""


class PluginGroup(TyperGroup):
    """Its own commands, and those of `specsched.commands` that do not share a name with one."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_plugins()})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        own = super().get_command(ctx, cmd_name)
        plugin = _plugins().get(cmd_name)
        if own is not None or plugin is None:
            return _with_whole_summaries(own)
        summary = SUMMARIES.get(cmd_name) if self._is_listing else None
        return _described(cmd_name, summary) if summary else _load(plugin)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. What is logged meanwhile is kept off its result; a server sets up logs of
        its own."""
        from specsched_protocol.logs import logs_on_stderr

        with logs_on_stderr():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which lists the commands."""
        with self._listing():
            super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, each with its whole summary."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Suggest commands."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def _plugins() -> dict[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=GROUP)}


def _load(plugin: EntryPoint) -> Any:
    try:
        target = plugin.load()
    except (ImportError, AttributeError) as error:
        return _unavailable(plugin, error)
    if not isinstance(target, typer.Typer):
        return _as_command(plugin.name, target)
    command: Any = typer.main.get_command(target)
    command.name = plugin.name
    _drop_completion(command)
    _with_whole_summaries(command)
    for each in (command, *getattr(command, "commands", {}).values()):
        each.rich_markup_mode = None
    return command


def _with_whole_summaries(command: Any) -> Any:
    """The same; a list of its commands, where it has some, cuts none of their summaries."""
    for each in getattr(command, "commands", {}).values():
        each.short_help = each.get_short_help_str(_WHOLE)
    return command


def _drop_completion(command: Any) -> None:
    """Completion is the whole program's, not that of one of its commands."""
    own = {"install_completion", "show_completion"}
    command.params = [each for each in command.params if each.name not in own]


def _as_command(name: str, function: Any, **context: Any) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, context_settings=context)(function)
    return typer.main.get_command(app)


def _described(name: str, summary: str) -> Any:
    def listed() -> None:
        raise NotImplementedError("stands in a list only")

    listed.__doc__ = summary
    return _as_command(name, listed)


def _unavailable(plugin: EntryPoint, error: Exception) -> Any:
    """A command that, whatever its arguments, says why the real one is not there."""

    def explain() -> None:
        typer.echo(f"error: {plugin.name} cannot be loaded from {plugin.value}: {error}", err=True)
        raise typer.Exit(ExitCode.MISSING_PACKAGE)

    explain.__doc__ = f"(not available: {error})"
    return _as_command(plugin.name, explain, ignore_unknown_options=True, allow_extra_args=True)
