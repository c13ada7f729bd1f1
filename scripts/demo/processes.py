"""The two processes of the demo: started, watched and ended by process id."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

__all__ = ["DemoError", "free_port", "running", "supervised"]

COMMAND = Path(sys.executable).with_name("specsched")
TERMINATION_GRACE_S = 15.0
LOG_LINES_SHOWN = 30

T = TypeVar("T")


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


def free_port() -> int:
    """Return a TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def running(log: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `specsched ARGUMENTS` with its output in `log`; end it on the way out."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        await _end(process)


async def supervised(work: asyncio.Task[T], processes: dict[Path, asyncio.subprocess.Process]) -> T:
    """Await `work`; raise DemoError once one of `processes` (log -> process) exits instead."""
    exits = [asyncio.create_task(process.wait()) for process in processes.values()]
    done, pending = await asyncio.wait({work, *exits}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if work in done:
        return work.result()
    log = next(log for log, ended in zip(processes, exits, strict=True) if ended in done)
    raise DemoError(f"the {log.stem} process ended early; its last words:\n{_tail(log)}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), TERMINATION_GRACE_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_SHOWN:])
