"""The upgrade that the documentation tells for systemd, with the units' own command lines.

Nothing comes from the test but where the root of the machine is, and what an operator writes into
the environment files: a small model, a free port.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from specsched_client import Client, Sampling

from tests.deploy.supervisor import Supervisor
from tests.deploy.unit_files import EXECUTOR, FOLDER, SCHEDULER, Unit
from tests.integration.processes import wait_until
from tests.integration.tiny_checkpoint import write_tiny_checkpoint
from tests.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OLD, NEW = "0.1.0", "0.2.0"
SECTION = re.compile(r"### Upgrade with systemd\n.*?```\n(?P<commands>.*?)```", re.DOTALL)
SPECSCHED = Path(sys.executable).with_name("specsched")
SAMPLING = Sampling(temperature=0.0, max_tokens=48, ignore_eos=True)


def documented_commands() -> list[list[str]]:
    block = SECTION.search((ROOT / "docs" / "deployment.md").read_text())["commands"]
    return [line.partition("#")[0].split() for line in block.splitlines()]


class Operator:
    """Carries out the lines of the page on a machine, and looks what came of each."""

    def __init__(self, machine: Supervisor, target: str) -> None:
        self._machine, self._target = machine, target
        self._run_dir = Path(machine.folders["t"]) / "specsched"
        self.enabled: set[str] = set()

    def carry_out(self, program: str, *words: str) -> None:
        if program == "specsched":
            self.specsched(*words)
            return
        assert program == "systemctl"
        verb, name = words
        match verb:
            case "start":
                self._machine.start(name)
                wait_until(lambda: name.partition("@")[2] in self.roles(), timeout_s=60)
            case "stop":
                assert self._machine.stop(name) == 0
            case "enable":
                self.enabled.add(name)
            case "disable":
                self.enabled.remove(name)
            case _:
                pytest.fail(f"systemctl {verb} is not known here")

    def specsched(self, *words: str) -> str:
        # As deploy/systemd/specsched does it for the user of the units.
        environ = {
            **os.environ,
            "SPECSCHED_RUN_DIR": str(self._run_dir),
            "SPECSCHED_TARGET": self._target,
        }
        done = subprocess.run(
            [SPECSCHED, *words], check=False, capture_output=True, text=True, env=environ
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def roles(self) -> dict[str, bool]:
        """Attached schedulers; whether each is followed."""
        with Client(self._target) as client:
            return {each.name: each.active for each in client.schedulers().schedulers}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Supervisor, str]]:
    root = tmp_path_factory.mktemp("m")  # short: paths of sockets have at most 107 bytes
    for environment in ("executor", OLD, NEW):
        program = root / "opt/specsched" / environment / "bin/specsched"
        program.parent.mkdir(parents=True)
        program.symlink_to(SPECSCHED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {
        "SPECSCHED_EXECUTOR_MODEL": str(write_tiny_checkpoint(root / "tiny")),
        "SPECSCHED_EXECUTOR_PORT": port,
        "SPECSCHED_EXECUTOR_DRAFTER": "ngram",
        "SPECSCHED_EXECUTOR_PROFILE": "quick",
        "SPECSCHED_EXECUTOR_MAX_NUM_SEQS": "4",
        "SPECSCHED_EXECUTOR_MAX_CONTEXT_TOKENS": "512",
        "SPECSCHED_EXECUTOR_FAILOVER_AFTER_MS": "4000",  # a busy machine stalls
        # What the tests compiled before is used: an empty folder would take minutes to fill.
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    units = {
        "specsched-executor": Unit.read(EXECUTOR),
        "specsched-scheduler@": Unit.read(SCHEDULER),
    }
    with Supervisor(root, units, variables) as supervisor:
        yield supervisor, f"127.0.0.1:{port}"


@contextmanager
def load(target: str) -> Iterator[None]:
    """Requests all the time; every one must be answered, and with the same text."""
    stop = threading.Event()
    with Client(target) as client, ThreadPoolExecutor(1) as pool:
        expected = client.generate("abab", SAMPLING, timeout_s=60).token_ids

        def ask() -> int:
            num_answers = 0
            while not stop.is_set():
                assert client.generate("abab", SAMPLING, timeout_s=60).token_ids == expected
                num_answers += 1
            return num_answers

        asking = pool.submit(ask)
        try:
            yield
        finally:
            stop.set()
        assert asking.result() > 0
        counters = client.step_counters().counters
        assert (counters.num_failed_requests, counters.num_failed_steps) == (0, 0)


def test_the_documented_upgrade(machine: tuple[Supervisor, str]) -> None:
    supervisor, target = machine
    operator = Operator(supervisor, target)
    old, new = f"specsched-scheduler@{OLD}", f"specsched-scheduler@{NEW}"
    supervisor.start(old)
    supervisor.start("specsched-executor")
    operator.enabled.add(old)
    wait_until(lambda: operator.roles() == {OLD: True}, timeout_s=60)
    for service in supervisor.running.values():
        service.wait_for("WATCHDOG=1", timeout_s=60)

    seen = []
    with load(target):
        for command in documented_commands():
            operator.carry_out(*command)
            seen.append(operator.roles())

    # In turn: it shadows, is followed, and goes on alone.
    assert seen[0] == {OLD: True, NEW: False}
    promoted = [command[:2] for command in documented_commands()].index(["specsched", "promote"])
    assert all(roles == {OLD: True, NEW: False} for roles in seen[:promoted])
    assert all(roles == {OLD: False, NEW: True} for roles in seen[promoted:-1])
    assert operator.enabled == {new}
    wait_until(lambda: operator.roles() == {NEW: True}, timeout_s=60)
    assert json.loads(operator.specsched("lanes", "--json"))

    executor = supervisor.running["specsched-executor"]
    assert supervisor.stop("specsched-executor") == 0
    assert "STOPPING=1" in executor.heard
    assert supervisor.stop(new) == 0
    # The directory that both met in outlives them.
    assert (Path(supervisor.folders["t"]) / "specsched").stat().st_mode & 0o777 == 0o700


def test_the_command_line_for_operators_is_that_of_the_units() -> None:
    wrapper = (FOLDER / "specsched").read_text()
    unit = Unit.read(EXECUTOR)
    assert f"runuser -u {unit.value('User')} " in wrapper
    words = unit.command()
    assert f"SPECSCHED_RUN_DIR={words[words.index('--run-dir') + 1]} {words[0]} " in wrapper
