"""The executor's part of the command line. Importable without torch."""

from __future__ import annotations

import importlib.util
import sys

from specsched_protocol.ending import EndSignal, end_process
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.logs import configure_logging
from specsched_protocol.settings import settings_command

from specsched_executor._openmp import wait_long
from specsched_executor.allocator import start_anew_with_settings
from specsched_executor.config import ExecutorConfig

__all__ = ["executor"]

_MISSING_TORCH = (
    "error: the executor needs torch, which is not installed: pip install 'specsched[executor]'"
)


def run(config: ExecutorConfig) -> int:
    """Serve the model until SIGTERM or SIGINT, then end the process.

    Returns the exit status only where torch is missing.
    """
    if importlib.util.find_spec("torch") is None:
        print(_MISSING_TORCH, file=sys.stderr)  # noqa: T201 - before there is a log
        return ExitCode.MISSING_PACKAGE
    configure_logging(config.log_level, config.log_format)
    if config.device != "cuda":
        start_anew_with_settings()
        wait_long()
    end = EndSignal()  # before the seconds that the import of torch takes
    from specsched_executor.serve import serve

    return end_process(serve(config, end))


executor = settings_command(
    ExecutorConfig, run, doc="Serve a model; attach to schedulers in the run directory."
)
