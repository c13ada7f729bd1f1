"""The run directory: where executors and schedulers of one user find each other.

    RUN_DIR/                                   0700, owned by the user
        schedulers/NAME.sock                   a scheduler's gRPC socket; executors dial every one
        executors/BOOT_ID/handoff.sock         an executor's private socket for descriptors
        executors/*.starting                   an executor that does not serve yet (start_marks)

Leaf module: standard library only. The environment is passed in, never read here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MAX_SOCKET_PATH_BYTES",
    "RunDir",
    "RunDirError",
    "check_socket_path",
    "default_run_dir",
    "ensure_private_dir",
    "is_listening",
    "remove_stale_socket",
]

MAX_SOCKET_PATH_BYTES = 107
"""Longest path that `sockaddr_un.sun_path` holds beside its terminating zero."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_BOOT_ID_PREFIX_BYTES = 6
_PROBE_TIMEOUT_S = 0.5
_YOUNG_S = 60.0


class RunDirError(RuntimeError):
    """A run directory or socket path that cannot be used; the message names it and says why."""


def default_run_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_RUNTIME_DIR/specsched`, else `/tmp/specsched-UID`."""
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    if runtime_dir:
        return Path(runtime_dir) / "specsched"
    return Path(f"/tmp/specsched-{os.geteuid()}")  # noqa: S108 - owner and mode are checked


def ensure_private_dir(path: Path) -> Path:
    """Create `path` with mode 0700, or check that it is a directory only its owner, us, can write.

    Raises RunDirError for a missing parent, a symbolic link, another owner or a writable mode:
    whoever can write there could stand in for a scheduler.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise RunDirError(f"cannot create run directory {path}: {error.strerror}") from error
    return _check_private_dir(path)


def _check_private_dir(path: Path) -> Path:
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunDirError(f"cannot use run directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(f"{path} is not a directory (symbolic links are refused)")
    if status.st_uid != os.geteuid():
        raise RunDirError(f"{path} belongs to uid {status.st_uid}, expected {os.geteuid()}")
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise RunDirError(f"{path} has mode {mode:04o}: group or others can write; use 0700")
    return path


def check_socket_path(path: Path) -> Path:
    """`path` itself; RunDirError if a Unix socket address cannot hold it."""
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_SOCKET_PATH_BYTES:
        raise RunDirError(
            f"socket path {path} has {num_bytes} bytes, at most {MAX_SOCKET_PATH_BYTES} are"
            " possible: choose a shorter --run-dir"
        )
    return path


def remove_stale_socket(path: Path) -> None:
    """Remove the socket a dead process left at `path`, so that it can be bound again.

    Raises RunDirError if someone still listens there, or if it is not a socket.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise RunDirError(f"{path} exists and is not a socket")
    if is_listening(path):
        raise RunDirError(f"{path} is in use by a running process")
    path.unlink(missing_ok=True)


def is_listening(path: Path) -> bool:
    """Whether a process listens at the socket `path`, or is too busy to accept."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        result = probe.connect_ex(os.fspath(path))
    # Anything but "nobody home" (a full backlog, another socket type) means a living listener.
    return result not in {errno.ECONNREFUSED, errno.ENOENT}


@dataclass(frozen=True, slots=True)
class RunDir:
    """A checked run directory. Obtain one from `RunDir.open`."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> RunDir:
        """Create the directory and its two folders, or check those that exist.

        Raises RunDirError as `ensure_private_dir` does.
        """
        root = Path(os.path.abspath(root))  # keeps a link as last component, to be refused
        ensure_private_dir(root)
        ensure_private_dir(root / "schedulers")
        ensure_private_dir(root / "executors")
        return cls(root)

    @classmethod
    def find(cls, root: Path) -> RunDir | None:
        """The directory if it is there, checked like `open` does; nothing is created."""
        root = Path(os.path.abspath(root))
        try:
            _check_private_dir(root)
            _check_private_dir(root / "schedulers")
        except FileNotFoundError:
            return None
        return cls(root)

    @property
    def schedulers_dir(self) -> Path:
        """Folder of the discovery sockets."""
        return self.root / "schedulers"

    def scheduler_socket(self, name: str) -> Path:
        """Discovery socket of the scheduler `name`; RunDirError for an unusable name or path."""
        if not _NAME.fullmatch(name):
            raise RunDirError(
                f"scheduler name {name!r}: 1 to 64 letters, digits, '_', '-' or '.' are accepted,"
                " not starting with '.'"
            )
        return check_socket_path(self.schedulers_dir / f"{name}.sock")

    def scheduler_sockets(self) -> tuple[Path, ...]:
        """Discovery sockets present now, sorted by name. Some may be stale."""
        with suppress(FileNotFoundError), os.scandir(self.schedulers_dir) as entries:
            names = sorted(each.name for each in entries if each.name.endswith(".sock"))
            paths = map(self.schedulers_dir.joinpath, names)
            return tuple(path for path in paths if path.is_socket())
        return ()

    def check_executor_socket(self) -> None:
        """Raise RunDirError where the path of an executor's socket would be too long."""
        any_boot_id = "0" * 2 * _BOOT_ID_PREFIX_BYTES
        check_socket_path(self.root / "executors" / any_boot_id / "handoff.sock")

    def executor_dir(self, boot_id: bytes) -> Path:
        """Private folder of an executor, created when missing."""
        return ensure_private_dir(self.root / "executors" / boot_id[:_BOOT_ID_PREFIX_BYTES].hex())

    def remove_stale_executors(self) -> None:
        """Remove the folders that executors killed some time ago left behind."""
        for path in (self.root / "executors").glob("*/handoff.sock"):
            # Another executor that starts now may be a moment ahead, or its owner may just leave;
            # what cannot be removed keeps nobody from starting.
            with suppress(OSError):
                # A young socket may belong to an executor between its bind and its listen.
                is_young = time.time() - path.lstat().st_mtime < _YOUNG_S
                if not is_young and not is_listening(path):
                    path.unlink()
                    path.parent.rmdir()

    def handoff_socket(self, boot_id: bytes) -> Path:
        """Where the executor `boot_id` hands over descriptors."""
        return check_socket_path(self.executor_dir(boot_id) / "handoff.sock")
