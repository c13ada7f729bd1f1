"""A scheduler and an executor, ready to be measured, and ended by their own ids."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specsched_client import Client

from scripts.soak.processes import Managed, wait_until

__all__ = ["Servers", "serving"]

_SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the two are reached."""

    executor_target: str
    scheduler_target: str


@contextlib.contextmanager
def serving(
    directory: Path, executor_options: Sequence[str], start_timeout_s: float
) -> Iterator[Servers]:
    """Start both, logs in `directory`; SoakError where they do not serve in time."""
    run_dir = directory / "run"
    common = ["--run-dir", str(run_dir), "--log-format", "json", "--http-address", "off"]
    scheduler = Managed(
        [sys.executable, "-m", "specsched_scheduler", *common], directory / "scheduler.log"
    )
    with contextlib.ExitStack() as ending:
        ending.callback(scheduler.close)
        _await_serving(scheduler, start_timeout_s)
        command = [sys.executable, "-m", "specsched_executor", *common, "--port", "0"]
        executor = Managed([*command, *executor_options], directory / "executor.log")
        ending.callback(executor.close)
        _await_serving(executor, start_timeout_s)
        target = f"127.0.0.1:{_serving(executor)['port']}"
        with Client(target) as client:
            wait_until(
                lambda: any(each.active for each in client.schedulers().schedulers),
                "the executor follows the scheduler",
                *(scheduler, executor),
                timeout_s=_SETTLE_S,
            )
        socket = next((run_dir / "schedulers").glob("*.sock"))
        yield Servers(target, f"unix:{socket}")
        executor.terminate()
        scheduler.terminate()


def _await_serving(process: Managed, timeout_s: float) -> None:
    what = f"{process.log.stem} serves"
    wait_until(lambda: bool(_serving(process)), what, process, timeout_s=timeout_s)


def _serving(process: Managed) -> dict[str, object]:
    """What the process logged when it was ready; empty before."""
    for line in process.log.read_text(encoding="utf-8").splitlines():
        if '"serving"' in line:
            return dict(json.loads(line))
    return {}
