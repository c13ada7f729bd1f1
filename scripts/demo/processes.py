"""The two processes of the demo: started, watched and ended by process id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scripts.demo.state import DemoState

__all__ = ["DemoError", "DemoProcesses", "end_on_signals", "start_both", "supervised"]

COMMAND = Path(sys.executable).with_name("specsched")
START_TIMEOUT_S = 1200.0
"""The first start compiles, which takes minutes where others use the cores too."""
POLL_INTERVAL_S = 0.1
TERMINATION_GRACE_S = 15.0
LOG_LINES_SHOWN = 30

T = TypeVar("T")


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class DemoProcesses:
    """Both processes, serving and attached. `by_log`: the file that each one's output goes to.

    is_cost_disturbed: other programs used the cores while the executor measured its steps.
    """

    scheduler_target: str
    executor_target: str
    is_cost_disturbed: bool
    by_log: dict[Path, Process]


def end_on_signals(is_told: threading.Event) -> None:
    """Cancel the current task on SIGINT, SIGTERM and SIGHUP; `is_told` tells that from a failure.

    What is under way when the task is cancelled may well fail of it.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("end_on_signals needs a running task")

    def end() -> None:
        is_told.set()
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end)


@contextlib.asynccontextmanager
async def start_both(directory: Path, state: DemoState) -> AsyncIterator[DemoProcesses]:
    """Start scheduler and executor in `directory`; wait until they are attached; end them after."""
    directory.mkdir(parents=True, exist_ok=True)
    run_dir = directory / "run"
    scheduler_log, executor_log = directory / "scheduler.log", directory / "executor.log"
    common = ("--run-dir", str(run_dir), "--log-format", "json")
    async with contextlib.AsyncExitStack() as running:
        # One after the other: what compiles beside the executor would be in its measurements.
        state.phase = "starting the scheduler; the first time it compiles, for a minute or more"
        scheduler = await running.enter_async_context(_running(scheduler_log, "scheduler", *common))
        serving = asyncio.create_task(_logged(scheduler_log, "serving"))
        await supervised(serving, {scheduler_log: scheduler})
        state.phase = (
            "loading the model and measuring what a step costs on this machine;"
            " the first time it compiles, for a minute or more"
        )
        executor = await running.enter_async_context(
            _running(executor_log, "executor", *common, "--port", "0")
        )
        by_log = {scheduler_log: scheduler, executor_log: executor}
        serving = asyncio.create_task(_logged(executor_log, "serving"))
        port = (await supervised(serving, by_log))["port"]
        state.phase = "waiting for the executor to attach to the scheduler"
        attached = asyncio.create_task(_logged(executor_log, "attached to scheduler"))
        await supervised(attached, by_log)
        cost = await _logged(executor_log, "step cost known")
        yield DemoProcesses(
            scheduler_target=f"unix:{run_dir}/schedulers/default.sock",
            executor_target=f"127.0.0.1:{port}",
            is_cost_disturbed=cost["disturbed"],
            by_log=by_log,
        )


@contextlib.asynccontextmanager
async def _running(log: Path, *arguments: str) -> AsyncIterator[Process]:
    with log.open("wb") as out:
        # A session of its own: Ctrl-C reaches the demo alone, which ends the process in good order.
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await _end(process)


async def _logged(log: Path, event: str) -> dict[str, Any]:
    """The first line of a JSON log that tells `event`, as soon as it is there."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for line in log.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == event:
                    return entry
        await asyncio.sleep(POLL_INTERVAL_S)
    raise DemoError(f"no {event!r} within {START_TIMEOUT_S:.0f} s; the log ends:\n{_tail(log)}")


async def supervised(work: asyncio.Task[T], processes: dict[Path, Process]) -> T:
    """Await `work`; raise DemoError once one of `processes` (log -> process) exits instead."""
    exits = [asyncio.create_task(process.wait()) for process in processes.values()]
    tasks = (work, *exits)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if work in done:
        return work.result()
    log, ended = next((log, end) for log, end in zip(processes, exits, strict=True) if end in done)
    raise DemoError(
        f"the {log.stem} process ended early with exit status {ended.result()}; its last words:\n"
        f"{_tail(log)}"
    )


async def _end(process: Process) -> None:
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
