"""One executor and the schedulers of two installations, as a soak moves them about."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from specsched_client import Client, SchedulerClient
from specsched_protocol.v1 import executor_pb2

from .installations import Installation
from .processes import START_TIMEOUT_S, Managed, SoakError, wait_until
from .step_times import Span, recorded

__all__ = ["Rig"]

_SETTLE_S = 60.0
_NUM_COMPARED = 5
"""Steps that a new shadow decided soundly before it is promoted."""


class Rig:
    """Starts, swaps, kills and stops; every wait is for what a process says.

    spans: the parts of what was done, by kind. poll_s: how often the executor is asked; an answer
    takes its interpreter a part of a millisecond, which step times show where it is asked often.
    """

    def __init__(
        self,
        directory: Path,
        installations: tuple[Installation, Installation],
        options: list[str],
        *,
        poll_s: float = 0.02,
    ) -> None:
        self.spans: list[Span] = []
        self._poll_s = poll_s
        self.directory = directory
        self.run_dir = directory / "run"
        self.schedulers: dict[str, Managed] = {}
        self.versions: set[str] = set()
        self._installations = {each.name: each for each in installations}
        self._log = directory / "executor.log"
        command: list[str | Path] = [sys.executable, "-m", "specsched_executor"]
        command += ["--run-dir", self.run_dir]
        command += ["--port", "0", "--log-format", "json", *options]
        self.executor = Managed(command, self._log)
        self._await(lambda: self._port() is not None, "the executor serves", START_TIMEOUT_S)
        self.target = f"127.0.0.1:{self._port()}"
        self.client = Client(self.target)

    # ===================== What is so =====================

    def lanes(self) -> dict[str, executor_pb2.AttachedScheduler]:
        """Attached schedulers by name."""
        return {each.name: each for each in self.client.schedulers().schedulers}

    def active(self) -> str:
        """Who is followed; empty: nobody."""
        return next((name for name, lane in self.lanes().items() if lane.active), "")

    def counters(self) -> executor_pb2.StepCounters:
        """The executor's totals."""
        return self.client.step_counters().counters

    # ===================== What is done =====================

    def compile_all(self) -> None:
        """Start each installation once, in turn: a first start compiles for long."""
        for name in self._installations:
            process = self._spawn(name)
            try:
                attached = f"{name} is attached"
                self._await(lambda: name in self.lanes(), attached, START_TIMEOUT_S, process)  # noqa: B023
            finally:
                process.close()
            self._await(lambda: not self.lanes(), f"{name} is detached", _SETTLE_S)

    def start(self, name: str) -> None:
        """Start a scheduler of that installation and wait until it decides steps."""
        installation, log_end = self._installations[name], self._log.stat().st_size
        process = self.schedulers[name] = self._spawn(name)
        attached = f"{name} is attached"
        self._await(lambda: self._is_told(name, log_end), attached, START_TIMEOUT_S, process)
        self._await(lambda: self._decides(name), f"{name} decides", START_TIMEOUT_S, process)
        lane = self.lanes()[name]
        policy_name = installation.policy.partition("(")[0]
        if (lane.version, lane.policy.name) != (installation.version, policy_name):
            raise SoakError(f"{name} is {lane.version} by {lane.policy.name}")
        self.versions.add(lane.version)

    def swap(self) -> None:
        """Upgrade to the other installation: start it, promote it, end the old one."""
        old = self.active()
        new = self._other(old)
        if new not in self.schedulers:
            with recorded(self.spans, "swap: start"):
                self.start(new)
        with recorded(self.spans, "swap: promote"):
            self._promote(new)
        with recorded(self.spans, "swap: end"):
            self.schedulers.pop(old).terminate()
            self._await(lambda: old not in self.lanes(), f"{old} is detached", _SETTLE_S)

    def kill(self, rng: random.Random) -> None:
        """kill -9 the active scheduler at a random instant, with or without a shadow beside it."""
        name = self.active()
        if rng.random() < 0.5 and self._other(name) not in self.schedulers:
            with recorded(self.spans, "kill: start of a shadow"):
                self.start(self._other(name))
        self._pass_steps(rng.randrange(1, 8))
        with recorded(self.spans, "kill: loss"):
            self.schedulers.pop(name).kill()
            self._await(lambda: self.active() != name, f"{name} is lost", _SETTLE_S)
        if not self.schedulers:
            self._pass_steps(3)
            with recorded(self.spans, "kill: start without any"):
                self.start(name)
        self._await(lambda: self.active() in self.schedulers, "another takes over", _SETTLE_S)
        self._pass_steps(2)  # the one that read no plan before is counted with this kill

    def stall(self) -> None:
        """Stop the active scheduler until a shadow took over, then let it go on."""
        name = self.active()
        if self._other(name) not in self.schedulers:
            self.start(self._other(name))
        self.schedulers[name].signal(19)  # SIGSTOP
        try:
            self._await(lambda: self.active() != name, f"{name} is given up", _SETTLE_S)
        finally:
            self.schedulers[name].signal(18)  # SIGCONT
        self._pass_steps(3)

    def close(self) -> None:
        """End everything."""
        for scheduler in self.schedulers.values():
            scheduler.close()
        self.client.close()
        self.executor.terminate()

    # ===================== Inside =====================

    def _promote(self, name: str) -> None:
        with SchedulerClient(f"unix:{self.run_dir}/schedulers/{name}.sock") as operator:
            for change in operator.promote(timeout_s=_SETTLE_S).executors:
                if not change.reply.done:
                    raise SoakError(f"{name} was not promoted: {change.reply.reason}")
        if self.active() != name:
            raise SoakError(f"{name} was promoted, but {self.active()} is followed")

    def _spawn(self, name: str) -> Managed:
        installation = self._installations[name]
        command: list[str | Path] = [installation.python, "-m", "specsched_scheduler"]
        command += ["--run-dir", self.run_dir, "--name", name, "--policy", installation.policy]
        log = self.directory / f"{name}.log"
        return Managed([*command, "--log-format", "json"], log, **installation.environment)

    def _other(self, name: str) -> str:
        return next(each for each in self._installations if each != name)

    def _is_told(self, name: str, log_end: int) -> bool:
        """Whether the executor has logged since then that it is attached to `name`: to read that
        takes none of its time."""
        with self._log.open("rb") as log:
            log.seek(log_end)
            lines = log.read().splitlines()
        return any(b'"attached to scheduler"' in each and name.encode() in each for each in lines)

    def _decides(self, name: str) -> bool:
        lane = self.lanes().get(name)
        return lane is not None and lane.comparison.num_sound_decisions >= _NUM_COMPARED

    def _pass_steps(self, number: int) -> None:
        end = self.counters().num_steps + number
        self._await(lambda: self.counters().num_steps >= end, "steps go on", _SETTLE_S)

    def _await(
        self, condition: Callable[[], bool], what: str, timeout_s: float, *others: Managed
    ) -> None:
        processes = (self.executor, *others)
        wait_until(condition, what, *processes, timeout_s=timeout_s, poll_s=self._poll_s)

    def _port(self) -> int | None:
        for line in self._log.read_text().splitlines():
            if '"serving"' in line:
                return int(json.loads(line)["port"])
        return None
