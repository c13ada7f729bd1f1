"""Standard output is a command's result and nothing else, whatever is logged meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import typer
from specsched_client.cli import _main
from specsched_protocol.logs import configure_logging
from typer.core import TyperCommand

from tests.clients.conftest import Run

SERVERS = {("executor",), ("scheduler",)}


def paths(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Every command, with its groups before it."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from paths(command, *above, name)
        else:
            yield (*above, name)


COMMANDS = sorted(paths(typer.main.get_command(_main.app)))


def test_all_commands_are_tried() -> None:
    assert {("status",), ("plan",), ("policy", "set")} | SERVERS <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_what_is_logged_is_not_on_stdout(
    run: Run, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    def work(self: Any, context: Any) -> None:
        if path in SERVERS:
            configure_logging("info", "json")
        log = structlog.get_logger("work")
        log.info("step by step")
        log.warning("odd")
        typer.echo("result")

    monkeypatch.setattr(TyperCommand, "parse_args", lambda self, context, arguments: [])
    monkeypatch.setattr(TyperCommand, "invoke", work)
    code, out, err = run(*path)
    assert (code, out) == (0, "result\n")
    assert "odd" in err
    assert ("step by step" in err) == (path in SERVERS)
