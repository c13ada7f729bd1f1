"""What the exit status of `specsched` says of an error of the client."""

from __future__ import annotations

from specsched_protocol.exit_codes import ExitCode


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
