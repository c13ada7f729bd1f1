"""The run directory and the sockets in it."""

from __future__ import annotations

import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from specsched_protocol.run_dir import RunDir, RunDirError

from specsched_client.cli.doctor.findings import Code, Finding, Severity

__all__ = ["Peer", "check_run_dir", "check_sockets"]

_TIMEOUT_S = 2.0
_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that listens in the run directory. pid: 0 where it is in another namespace."""

    path: Path
    pid: int


# ===================== Folders =====================


def check_run_dir(root: Path) -> list[Finding]:
    """Whether executors and schedulers of this user can meet in `root`, and nobody else can."""
    found = _check_length(root)
    folders = (root, root / "schedulers", root / "executors")
    if not os.path.lexists(root):
        what = f"{root} does not exist: nothing has run here as this user"
        remedy = "the first process makes it; if one runs, give its --run-dir or SPECSCHED_RUN_DIR"
        return [*found, Finding(Code.RUN_DIR_MISSING, Severity.NOTE, what, remedy)]
    for folder in folders:
        if os.path.lexists(folder):
            found += _check_folder(folder)
    if not any(each.severity is Severity.ERROR for each in found):
        found.append(Finding(Code.RUN_DIR, Severity.OK, f"{root} is this user's alone"))
    return found


def _check_length(root: Path) -> list[Finding]:
    try:
        RunDir(root).check_executor_socket()
    except RunDirError as error:
        remedy = "give a shorter --run-dir, such as /run/user/UID/specsched"
        return [Finding(Code.RUN_DIR_TOO_LONG, Severity.ERROR, str(error), remedy)]
    return []


def _check_folder(folder: Path) -> list[Finding]:
    status, uid = folder.lstat(), os.geteuid()
    if not stat.S_ISDIR(status.st_mode):
        what = f"{folder} is not a directory (a link is none either)"
        return [_error(Code.RUN_DIR_TYPE, what, f"remove it: rm {folder}")]
    if status.st_uid != uid:
        what = f"{folder} belongs to uid {status.st_uid}, this is uid {uid}"
        remedy = f"run this and the processes as uid {status.st_uid}, or: chown -R {uid} {folder}"
        return [_error(Code.RUN_DIR_OWNER, what, remedy)]
    found = []
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        what = f"{folder} has mode {mode:04o}: others could pose as a scheduler, so it is refused"
        found.append(_error(Code.RUN_DIR_MODE, what, f"chmod 700 {folder}"))
    if not os.access(folder, os.W_OK | os.X_OK):
        what = f"{folder} cannot be written: a read-only file system, or its mode"
        remedy = f"mount it writable, chmod 700 {folder}, or give another --run-dir"
        found.append(_error(Code.RUN_DIR_READ_ONLY, what, remedy))
    return found


# ===================== Sockets =====================


def check_sockets(root: Path) -> tuple[list[Finding], list[Peer]]:
    """The sockets of schedulers and executors, and who listens on them."""
    paths = [*root.glob("schedulers/*.sock"), *root.glob("executors/*/handoff.sock")]
    found: list[Finding] = []
    peers: list[Peer] = []
    for path in sorted(paths):
        findings, peer = _check_socket(path)
        found += findings
        peers += [peer] if peer else []
    if peers:
        names = ", ".join(str(peer.path.relative_to(root)) for peer in peers)
        found.append(Finding(Code.SOCKET, Severity.OK, f"somebody listens on {names}"))
    return found, peers


def _check_socket(path: Path) -> tuple[list[Finding], Peer | None]:
    try:
        status = path.lstat()
    except FileNotFoundError:  # gone since it was listed
        return [], None
    if not stat.S_ISSOCK(status.st_mode):
        what = f"{path} is not a socket"
        return [_error(Code.SOCKET_TYPE, what, f"rm {path}")], None
    found = []
    if status.st_uid != os.geteuid():
        what = f"{path} belongs to uid {status.st_uid}, this is uid {os.geteuid()}"
        remedy = f"run all processes as one user; then: rm {path}"
        found.append(_error(Code.SOCKET_OWNER, what, remedy))
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        what = f"{path} has mode {mode:04o}, expected 0600: the folder alone protects it"
        found.append(Finding(Code.SOCKET_MODE, Severity.WARNING, what, f"chmod 600 {path}"))
    pid = _listener(path)
    if pid is None:
        found.append(_stale(path))
        return found, None
    return found, Peer(path, pid)


def _stale(path: Path) -> Finding:
    if path.name == "handoff.sock":
        what = f"{path} was left by an executor that was killed"
        return Finding(Code.SOCKET_STALE, Severity.NOTE, what, f"rm -r {path.parent}")
    what = f"{path} was left by a scheduler that was killed: executors dial it in vain"
    remedy = f"start it again (specsched scheduler --name {path.stem}), or: rm {path}"
    return Finding(Code.SOCKET_STALE, Severity.WARNING, what, remedy)


def _listener(path: Path) -> int | None:
    """Process that listens, 0 for one out of sight; None: nobody."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.settimeout(_TIMEOUT_S)
            try:
                probe.connect(os.fspath(path))
            except (ConnectionRefusedError, FileNotFoundError):
                return None
            except OSError as error:  # of another type, or too busy to accept
                if isinstance(error, TimeoutError | BlockingIOError):
                    return 0
                continue
            raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            pid, _, _ = _UCRED.unpack(raw)
            return int(pid)
    return 0


def _error(code: Code, what: str, remedy: str) -> Finding:
    return Finding(code, Severity.ERROR, what, remedy)
