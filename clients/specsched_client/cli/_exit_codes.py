"""What the exit status of `specsched` says."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Documented in the help of the command; typer adds 130 for an interrupt."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    MISSING_PACKAGE = 5


def exit_code_of(error: Exception) -> ExitCode:
    """The status for an error of the client."""
    from specsched_client import _errors as errors

    codes = {
        errors.InvalidRequestError: ExitCode.BAD_INPUT,
        errors.UnsupportedError: ExitCode.BAD_INPUT,
        errors.ConnectionFailedError: ExitCode.UNREACHABLE,
        errors.DeadlineExceededError: ExitCode.TIMED_OUT,
        errors.MissingDependencyError: ExitCode.MISSING_PACKAGE,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.FAILED)
