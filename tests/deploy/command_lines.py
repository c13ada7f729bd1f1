"""Reads a process's command line and environment with the command line that the process has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from unittest import mock

import typer
from specsched_executor.config import ExecutorConfig
from specsched_protocol.settings import ProcessSettings, settings_command
from specsched_scheduler.config import SchedulerConfig
from typer.testing import CliRunner

SETTINGS: dict[str, type[ProcessSettings]] = {
    "executor": ExecutorConfig,
    "scheduler": SchedulerConfig,
}


class RefusedError(Exception):
    """What the process itself would have said."""


def read_options(arguments: Sequence[str], environ: Mapping[str, str]) -> ProcessSettings:
    """Options of `specsched ARGUMENTS`, arguments beginning with "executor" or "scheduler".

    Raises RefusedError for an unknown flag or variable and for a value that is not accepted.
    """
    name, *flags = arguments
    assert name in {point.name for point in entry_points(group="specsched.commands")}
    read: list[ProcessSettings] = []

    def keep(settings: ProcessSettings) -> int:
        read.append(settings)
        return 0

    app = typer.Typer(rich_markup_mode=None)
    app.command()(settings_command(SETTINGS[name], keep, doc=""))
    with mock.patch.dict(os.environ, environ, clear=True):
        done = CliRunner().invoke(app, flags)
    if not read:
        raise RefusedError(done.output)
    return read[0]
