"""The one command line, `specsched`.

Exit codes: 0 done; 1 the server failed or a request was not completed; 2 the input cannot be used;
3 nobody answers at the target; 4 the time limit passed; 5 an optional package is missing; 130
interrupted. `scheduler` and `executor` end with 0 when they are told to, however early.
"""

from __future__ import annotations

import signal
import sys
from typing import Final

from specsched_protocol.ending import END_SIGNALS, leaving_when_told

__all__ = ["main"]

_SERVERS: Final = {"scheduler", "executor"}
_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line."""
    if _SERVERS.intersection(sys.argv[1:2]):
        with leaving_when_told(0, END_SIGNALS):  # until the process takes the signals itself
            _run()
        return
    # From there on, Ctrl-C is an exception that the command may tidy up after.
    with leaving_when_told(_INTERRUPTED, [signal.SIGINT]):
        from specsched_client.cli import _main  # noqa: F401 - what takes its time
    _run()


def _run() -> None:
    from specsched_client.cli._main import run

    run()
