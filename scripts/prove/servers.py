"""A scheduler and an executor, ready to be measured, and ended by their own ids."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specsched_client import Client

from scripts.soak.processes import Managed, wait_until

__all__ = ["Servers", "serving"]


_MANY_CORES = 8


class Servers:
    """Where the two are reached. The executor goes on while schedulers change."""

    def __init__(self, directory: Path, start_timeout_s: float) -> None:
        self._directory = directory
        self._run_dir = directory / "run"
        self._start_timeout_s = start_timeout_s
        self._options: tuple[str, ...] | None = None
        self._scheduler: Managed | None = None
        self._executor: Managed | None = None

    @property
    def executor_target(self) -> str:
        """Of the gateway API."""
        return f"127.0.0.1:{_serving(self._executor)['port']}"

    @property
    def scheduler_target(self) -> str:
        """Of the scheduler that decides now."""
        return f"unix:{next((self._run_dir / 'schedulers').glob('*.sock'))}"

    def start(self, executor_options: Sequence[str], scheduler_options: tuple[str, ...]) -> None:
        """Start both, and wait until steps are decided; SoakError where that does not come.

        One after the other where cores are few: the scheduler compiles at its first start, and what
        computes beside an executor that measures is in its measurements.
        """
        self._spawn_scheduler(scheduler_options)
        if len(os.sched_getaffinity(0)) < _MANY_CORES:
            self._await(lambda: bool(_serving(self._scheduler)), "the scheduler serves")
        command = [*self._command("specsched_executor"), "--port", "0", *executor_options]
        self._executor = Managed(command, self._directory / "executor.log")
        self._await(lambda: bool(_serving(self._executor)), "the executor serves")
        self._await(lambda: bool(_serving(self._scheduler)), "the scheduler serves")
        self._await_followed()

    def use_scheduler(self, options: tuple[str, ...]) -> None:
        """Have a scheduler with these options decide; SoakError where it does not in time."""
        if options == self._options:
            return
        if self._scheduler is not None:
            self._scheduler.terminate()
        self._spawn_scheduler(options)
        self._await(lambda: bool(_serving(self._scheduler)), "the scheduler serves")
        self._await_followed()

    def _spawn_scheduler(self, options: tuple[str, ...]) -> None:
        log = self._directory / "scheduler.log"
        log.unlink(missing_ok=True)
        self._scheduler = Managed([*self._command("specsched_scheduler"), *options], log)
        self._options = options

    def _await_followed(self) -> None:
        with Client(self.executor_target) as client:
            self._await(
                lambda: any(each.active for each in client.schedulers().schedulers),
                "the executor follows the scheduler",
            )

    def end(self) -> None:
        """Have both end in their own time, so that all they keep is written."""
        for process in (self._executor, self._scheduler):
            if process is not None:
                process.terminate()

    def close(self) -> None:
        """End both, whatever they do."""
        for process in (self._executor, self._scheduler):
            if process is not None:
                process.close()

    def _command(self, module: str) -> list[str]:
        common = ["--run-dir", str(self._run_dir), "--log-format", "json", "--http-address", "off"]
        return [sys.executable, "-m", module, *common]

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        processes = [each for each in (self._executor, self._scheduler) if each is not None]
        wait_until(condition, what, *processes, timeout_s=self._start_timeout_s)


@contextlib.contextmanager
def serving(
    directory: Path,
    executor_options: Sequence[str],
    scheduler_options: tuple[str, ...],
    start_timeout_s: float,
) -> Iterator[Servers]:
    """Start both, logs in `directory`; SoakError where they do not serve in time."""
    servers = Servers(directory, start_timeout_s)
    with contextlib.closing(servers):
        servers.start(executor_options, scheduler_options)
        yield servers
        servers.end()


def _serving(process: Managed | None) -> dict[str, Any]:
    """What the process logged when it was ready; empty before."""
    lines = process.log.read_text(encoding="utf-8").splitlines() if process is not None else []
    for line in lines:
        if '"serving"' in line:
            return dict(json.loads(line))
    return {}
