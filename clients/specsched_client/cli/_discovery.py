"""Which schedulers a command speaks to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import typer
from specsched_protocol.run_dir import RunDir, RunDirError, default_run_dir, is_listening
from specsched_protocol.v1 import scheduler_pb2

from specsched_client._errors import ConnectionFailedError, InvalidRequestError, SpecschedError
from specsched_client._scheduler_client import SchedulerClient

_TIMEOUT_S = 2.0


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
            raise InvalidRequestError(f"scheduler {scheduler}: no socket is there")
        return {path.stem: f"unix:{path}"}
    if ":" in scheduler:
        return {scheduler: scheduler}
    named = {path.stem: f"unix:{path}" for path in _sockets(run_dir)}
    if scheduler not in named:
        present = ", ".join(named) or "none"
        where = run_dir_root(run_dir)
        raise InvalidRequestError(f"no scheduler {scheduler} in {where}; present: {present}")
    return {scheduler: named[scheduler]}


def find_scheduler(run_dir: Path | None, scheduler: str | None) -> tuple[str, str]:
    """The one scheduler meant, as (name, target).

    Without `scheduler` the one that listens; of several the one that is followed, which stderr is
    told. Raises ConnectionFailedError where nobody listens, InvalidRequestError where a choice is
    needed.
    """
    found = find_schedulers(run_dir, scheduler)
    if scheduler is not None:
        return next(iter(found.items()))
    found = {name: target for name, target in found.items() if _listens(target)}
    if not found:
        where = run_dir_root(run_dir)
        raise ConnectionFailedError(f"no scheduler in {where}: `specsched scheduler` starts one")
    if len(found) == 1:
        return next(iter(found.items()))
    names = ", ".join(found)
    followed = _followed(found)
    if len(followed) != 1:
        raise InvalidRequestError(f"several schedulers are there, choose by --scheduler: {names}")
    (name,) = followed
    typer.echo(f"note: {name} is meant, which is followed; present: {names}", err=True)
    return name, found[name]


def _listens(target: str) -> bool:
    return is_listening(Path(target.removeprefix("unix:")))


def _followed(found: Mapping[str, str]) -> list[str]:
    """Those that an executor follows, as they were told; one that does not answer is none."""
    with ThreadPoolExecutor(len(found)) as pool:
        answers = pool.map(_is_followed, found.values())
        return [name for name, is_followed in zip(found, answers, strict=True) if is_followed]


def _is_followed(target: str) -> bool:
    with SchedulerClient(target) as client:
        try:
            attachments = client.status(timeout_s=_TIMEOUT_S).attachments
        except SpecschedError:
            return False
    return any(each.lane_status.role == scheduler_pb2.LANE_ROLE_ACTIVE for each in attachments)


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
