"""Which schedulers a command speaks to."""

from __future__ import annotations

import os
from pathlib import Path

from specsched_protocol.run_dir import RunDir, RunDirError, default_run_dir

from specsched_client._errors import ConnectionFailedError, InvalidRequestError


def find_schedulers(run_dir: Path | None, scheduler: str | None) -> dict[str, str]:
    """Name -> gRPC target of the schedulers meant, sorted by name; empty where none is there.

    `scheduler` narrows them to one: a name in the run directory, a socket's path, unix:/path or
    host:port. Raises InvalidRequestError for one that cannot exist and for a run directory that is
    not this user's own.
    """
    if scheduler is None:
        return {path.stem: f"unix:{path}" for path in _sockets(run_dir)}
    if scheduler.startswith("unix:"):
        return {Path(scheduler.removeprefix("unix:")).stem: scheduler}
    if "/" in scheduler:
        path = Path(scheduler).absolute()
        if not path.is_socket():
            raise InvalidRequestError(f"--scheduler {scheduler}: no socket is there")
        return {path.stem: f"unix:{path}"}
    if ":" in scheduler:
        return {scheduler: scheduler}
    named = {path.stem: f"unix:{path}" for path in _sockets(run_dir)}
    if scheduler not in named:
        present = ", ".join(named) or "none"
        raise InvalidRequestError(f"--scheduler {scheduler}: no such scheduler; present: {present}")
    return {scheduler: named[scheduler]}


def find_scheduler(run_dir: Path | None, scheduler: str | None) -> tuple[str, str]:
    """The one scheduler meant, as (name, target).

    Raises ConnectionFailedError where there is none, InvalidRequestError where a choice is needed.
    """
    found = find_schedulers(run_dir, scheduler)
    if not found:
        where = run_dir_root(run_dir)
        raise ConnectionFailedError(f"no scheduler in {where}: `specsched scheduler` starts one")
    if len(found) > 1:
        names = ", ".join(found)
        raise InvalidRequestError(f"several schedulers are there, choose by --scheduler: {names}")
    return next(iter(found.items()))


def _sockets(run_dir: Path | None) -> tuple[Path, ...]:
    # Whoever else could write there could pose as a scheduler. Looking must not create it.
    try:
        found = RunDir.find(run_dir_root(run_dir))
    except RunDirError as error:
        raise InvalidRequestError(str(error)) from error
    return found.scheduler_sockets() if found else ()


def run_dir_root(run_dir: Path | None) -> Path:
    """The directory that is meant: the one given, else this user's."""
    return run_dir.absolute() if run_dir else default_run_dir(os.environ)
