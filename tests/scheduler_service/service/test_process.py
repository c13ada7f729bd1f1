"""The scheduler as a process of its own: signals, stale and living sockets, refusals."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from specsched_client import SchedulerClient

from tests.integration.processes import (
    ManagedProcess,
    SchedulerProcess,
    start_scheduler,
)


def _run_until_refused(run_dir: Path, *options: str) -> tuple[int, str]:
    process = SchedulerProcess(run_dir, *options)
    status = process.popen.wait(60)
    process.terminate()
    return status, process.log


def test_killed_scheduler_is_replaced_and_a_living_one_is_not(tmp_path):
    first = start_scheduler(tmp_path)
    first.kill()
    assert first.socket_path.is_socket()
    with start_scheduler(tmp_path, policy="fixed(2)") as second:
        status, log = _run_until_refused(tmp_path)
        assert status == 2
        assert f"pid {second.pid}" in log
        with SchedulerClient(second.target) as client:
            assert dict(client.status().policy.parameters) == {"k": 2}
        assert second.terminate() == 0
        assert not second.socket_path.exists()


def test_run_directory_is_made_private(tmp_path):
    run_dir = tmp_path / "new"
    with start_scheduler(run_dir) as scheduler:
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(scheduler.socket_path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--policy", "oracle"), "'oracle'"),
        (("--policy", "fixed(-1)"), "k = -1"),
        (("--name", "a/b"), "a/b"),
        (("--heartbeat-ms", "1"), "heartbeat_ms = 1"),
        (("--planner-core", "4096"), "planner_core = 4096"),
    ],
)
def test_option_that_cannot_be_used_is_named(tmp_path, options, named):
    process = ManagedProcess(
        ["specsched_scheduler", "--run-dir", str(tmp_path / "r"), "--log-format", "json", *options]
    )
    assert process.popen.wait(60) == 2
    process.terminate()
    assert named in process.log
    assert "Traceback" not in process.log


def test_writable_run_directory_and_long_path_are_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    status, log = _run_until_refused(shared)
    assert (status, "0777" in log) == (2, True), log
    status, log = _run_until_refused(tmp_path / ("x" * 90))
    assert (status, "--run-dir" in log) == (2, True), log


def test_scheduler_loads_no_torch():
    code = "import sys, specsched_scheduler.commands; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
