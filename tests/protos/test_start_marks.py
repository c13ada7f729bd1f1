"""Marks of executors that start: who sees them, and when they are void."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from specsched_protocol.run_dir import RunDir
from specsched_protocol.start_marks import executors_starting, marked_as_starting

KILLED = """
import os, signal, sys
from pathlib import Path
from specsched_protocol.run_dir import RunDir
from specsched_protocol.start_marks import marked_as_starting

with marked_as_starting(RunDir.open(Path(sys.argv[1])), "127.0.0.1:1"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.open(tmp_path / "run")


def marks(run_dir: RunDir) -> list[Path]:
    return list((run_dir.root / "executors").iterdir())


def test_an_executor_is_seen_from_its_start_until_it_serves(run_dir: RunDir) -> None:
    began = time.time()
    with marked_as_starting(run_dir, "127.0.0.1:1"), marked_as_starting(run_dir, "127.0.0.1:2"):
        first, second = executors_starting(run_dir.root)
    assert (first.pid, first.target, second.target) == (os.getpid(), "127.0.0.1:1", "127.0.0.1:2")
    assert began <= first.since_s <= second.since_s <= time.time()
    assert executors_starting(run_dir.root) == ()
    assert marks(run_dir) == []


def test_the_mark_of_a_killed_one_is_void_and_removed_by_the_next(run_dir: RunDir) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, run_dir.root], check=False)
    assert killed.returncode < 0
    assert len(marks(run_dir)) == 1
    assert executors_starting(run_dir.root) == ()
    with marked_as_starting(run_dir, "127.0.0.1:2"):
        assert [each.target for each in executors_starting(run_dir.root)] == ["127.0.0.1:2"]
        assert len(marks(run_dir)) == 1


def test_what_is_no_mark_is_passed_over(run_dir: RunDir, tmp_path: Path) -> None:
    (run_dir.root / "executors" / "1.starting").write_text("[]")
    assert executors_starting(run_dir.root) == ()
    assert executors_starting(tmp_path / "nothing") == ()


def test_a_start_does_without_where_no_mark_can_be_made(run_dir: RunDir) -> None:
    (run_dir.root / "executors").rmdir()
    with marked_as_starting(run_dir, "127.0.0.1:1"):
        assert executors_starting(run_dir.root) == ()
