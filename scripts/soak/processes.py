"""Processes of a soak: each logs to a file of its own and is ended by its own id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Managed", "SoakError", "resources", "wait_until"]

START_TIMEOUT_S = 1200.0
"""A first start compiles, which takes minutes where others use the cores too."""
STOP_TIMEOUT_S = 30.0


class SoakError(RuntimeError):
    """The soak found a fault, or cannot go on; the message says which."""


class Managed:
    """One child process."""

    def __init__(self, command: Sequence[str | Path], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait."""
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        """SIGTERM, and wait; SoakError where it does not end, or not with 0."""
        self.popen.send_signal(signal.SIGTERM)
        try:
            status = self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SoakError(f"{self.log}: no end within {STOP_TIMEOUT_S:g} s") from None
        if status != 0:
            raise SoakError(f"{self.log}: ended with status {status}")

    def close(self) -> None:
        """End it, whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGCONT)
        self.kill()


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *processes: Managed,
    timeout_s: float,
    poll_s: float = 0.02,
) -> None:
    """Poll until `condition`; SoakError naming `what` when time is over or a process ended."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for process in processes:
            if process.popen.poll() is not None:
                raise SoakError(f"{process.log}: ended with status {process.popen.returncode}")
        if time.monotonic() > deadline:
            raise SoakError(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)


def resources(pid: int) -> dict[str, int]:
    """Resident memory in KiB, open descriptors and threads of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {
        "resident_kib": int(fields["VmRSS"].split()[0]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }
