"""What the exit status of a command says."""

from __future__ import annotations

import enum

__all__ = ["ExitCode"]


class ExitCode(enum.IntEnum):
    """Documented in the help of `specsched`; typer adds 130 for an interrupt."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    MISSING_PACKAGE = 5
