"""What a process shows on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from typing import Literal

__all__ = ["shown_on_terminal"]

_SIZE = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}


def shown_on_terminal(command: Sequence[str], stream: Literal["stdout", "stderr"]) -> str:
    """Run `command`, which must succeed, with that stream on a terminal; what was written there."""
    leader, follower = pty.openpty()
    streams = {stream: follower}
    with subprocess.Popen(command, env=os.environ | _SIZE, **streams) as process:
        os.close(follower)
        shown = b"".join(iter(lambda: _read(leader), b""))
    os.close(leader)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # how Linux tells that the other end has closed
        return b""
