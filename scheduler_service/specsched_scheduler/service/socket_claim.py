"""Exclusive ownership of a discovery socket's path.

gRPC unlinks whatever lies at a Unix path before it binds, a living server's socket too. So the path
is claimed first: a lock that dies with its process tells a leftover from a live owner without a
race, and a connection attempt recognises a server that knows nothing of the lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specsched_protocol.run_dir import remove_stale_socket

from .errors import SocketInUseError

__all__ = ["claim_socket"]


@contextmanager
def claim_socket(path: Path) -> Iterator[None]:
    """Own `path` inside the context: a stale socket is removed on entry, ours on exit.

    Raises SocketInUseError where another scheduler holds the lock, RunDirError where some other
    process listens at `path` or something else than a socket lies there.
    """
    lock_path = path.with_suffix(".lock")
    lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock_fd, path)
        remove_stale_socket(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        # The lock file stays: were it removed, two later starters could lock different inodes.
        os.close(lock_fd)


def _lock(lock_fd: int, path: Path) -> None:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
        raise SocketInUseError(
            f"{path} is served by a running scheduler (pid {owner}): "
            "stop it, or start this one with another --name"
        ) from None
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
