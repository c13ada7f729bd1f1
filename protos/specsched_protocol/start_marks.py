"""Marks of executors that start: for minutes they load, compile and measure, and answer nobody.

    RUN_DIR/executors/PID.RANDOM.starting    locked by the executor until it serves

The lock dies with its process, so a mark that is not locked was left by one that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from specsched_protocol.run_dir import RunDir

__all__ = ["StartingExecutor", "executors_starting", "marked_as_starting"]

_PATTERN = "*.starting"


@dataclass(frozen=True, slots=True)
class StartingExecutor:
    """target: where it is going to serve. since_s: Unix time at which it began."""

    pid: int
    target: str
    since_s: float


@contextmanager
def marked_as_starting(run_dir: RunDir, target: str) -> Iterator[None]:
    """This process starts an executor while the context is open; without a mark where the folder
    takes no file, which whoever makes a socket there says better."""
    folder = run_dir.root / "executors"
    _remove_left_behind(folder)
    with ExitStack() as undo:
        with suppress(OSError):
            _make_mark(folder, target, undo)
        yield


def _make_mark(folder: Path, target: str, undo: ExitStack) -> None:
    facts = StartingExecutor(os.getpid(), target, time.time())
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".")
    file, hidden = undo.enter_context(os.fdopen(descriptor, "w")), Path(name)
    undo.callback(hidden.unlink, missing_ok=True)
    fcntl.flock(file, fcntl.LOCK_EX)
    json.dump(asdict(facts), file)
    file.flush()
    mark = folder / f"{facts.pid}{hidden.name}.starting"
    hidden.rename(mark)  # only now: whoever sees it sees all of it, and the lock
    undo.callback(mark.unlink, missing_ok=True)


def executors_starting(root: Path) -> tuple[StartingExecutor, ...]:
    """Those that start in the run directory `root`, the one that began first first."""
    found = [each for path in (root / "executors").glob(_PATTERN) if (each := _read(path))]
    return tuple(sorted(found, key=lambda each: each.since_s))


def _read(path: Path) -> StartingExecutor | None:
    """None for one that is over, or that is no mark."""
    try:
        with path.open() as file:
            return None if _can_be_locked(file.fileno()) else StartingExecutor(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _remove_left_behind(folder: Path) -> None:
    for path in folder.glob(_PATTERN):
        with suppress(OSError), path.open() as file:
            if _can_be_locked(file.fileno()):
                path.unlink()


def _can_be_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
