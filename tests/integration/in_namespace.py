"""Run a command in another network namespace: in_namespace.py /proc/PID/fd/N COMMAND...

Becomes the command, so that its pid, its signals and its output are those of the process started.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNET = 0x4000_0000


def main() -> None:
    path, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.open(path, os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
