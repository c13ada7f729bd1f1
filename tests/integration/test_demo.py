"""`make demo` on real processes and the real model, short."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes import wait_until
from tests.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.demo", *options]
    return subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=380
    )


def test_demo_answers_every_prompt_and_tells_what_was_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECSCHED_EXECUTOR_PROFILE", "quick")
    logs = tmp_path / "logs"
    done = demo("--max-tokens", "16", "--policy", "throughput", "--policy", "off", "--logs", logs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" tokens) ---\n") == 2 * 6
    assert "texts the same under every policy: yes" in done.stdout
    assert float(re.search(r"plan on time: ([\d.]+)%", done.stdout)[1]) > 0
    verified = re.search(r"tokens verified +│ +([\d,]+) │ +([\d,]+) │", done.stdout)
    assert int(verified[1].replace(",", "")) > 0
    assert verified[2] == "0"
    assert re.search(r"throughput: speculation .* here, [\d.]+ times", done.stdout)
    for name in ("scheduler", "executor"):
        assert '"event"' in (logs / f"{name}.log").read_text()


def test_demo_says_why_a_process_failed_and_exits_with_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECSCHED_EXECUTOR_MODEL", "/no/such/model.gguf")
    done = demo("--logs", tmp_path / "logs")
    assert done.returncode == 1
    assert "the executor process ended early" in done.stdout
    assert "/no/such/model.gguf" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder below which the path of a socket is short enough."""
    with tempfile.TemporaryDirectory(prefix="demo-") as path:
        yield Path(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_demo_that_is_told_to_end_leaves_nothing_behind(number, short_tmp):
    environment = os.environ | {"TMPDIR": str(short_tmp)}
    command = [sys.executable, "-m", "scripts.demo"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: len(child_pids(running.pid)) == 2, timeout_s=300)
        children = child_pids(running.pid)
        running.send_signal(number)
        assert running.wait(60) == 130
    assert [pid for pid in children if alive(pid)] == []
    assert list(short_tmp.iterdir()) == []


def child_pids(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
