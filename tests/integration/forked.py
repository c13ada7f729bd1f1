"""Programs that begin where their imports end: forked from a process that has done those.

Torch, numba and gRPC take most of a start, and tests start more than a hundred processes. Each is
a process of its own from then on: it has its arguments, its signals, its log and its pid.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import IO, Final

import specsched_executor  # noqa: F401 -- as the next one, sets variables that libraries read
import specsched_scheduler  # noqa: F401

__all__ = ["ForkedProgram", "can_fork"]

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["specsched_executor.commands", "specsched_executor.serve", "specsched_scheduler.commands"]
)
_PASSING: Final = "PYTEST_CURRENT_TEST"
"""The one variable that changes from test to test."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != _PASSING}


_AT_FIRST: Final = _environment()


def can_fork() -> bool:
    """Whether a program would find what it expects: some variables are read by imports.

    In workers of pytest-xdist only, which have libraries start no threads: where a test or a
    measurement runs by itself, programs start as they do for everybody.
    """
    return "PYTEST_XDIST_WORKER" in os.environ and _environment() == _AT_FIRST


class ForkedProgram:
    """`python -m` a module, its stderr a pipe: what tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.args = [sys.executable, "-m", *arguments]
        reader, writer = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(arguments, writer), daemon=True)
        self._process.start()
        writer.close()
        self.stderr: IO[str] = os.fdopen(os.dup(reader.fileno()), "r", encoding="utf-8")
        reader.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: Sequence[str], stderr: Connection) -> None:
    os.dup2(stderr.fileno(), sys.stderr.fileno())
    stderr.close()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
