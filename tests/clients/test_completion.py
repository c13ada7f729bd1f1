"""Shell completion, asked the way a shell does it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from specsched_client.cli._completion import POLICIES
from specsched_scheduler.policies import available_policies

BIN = str(Path(sys.executable).parent)


def complete(line: str, run_dir: Path) -> list[str]:
    """What bash offers at the end of `line`, having sourced what `--show-completion` prints."""
    words = line.split(" ")
    script = (
        'eval "$(specsched --show-completion)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' _specsched_completion specsched; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "SPECSCHED_RUN_DIR": str(run_dir),
        },
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "schedulers"
    folder.mkdir(mode=0o700)
    for name in ("blue", "green"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / f"{name}.sock"))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("specsched pol", ["policy"]),
        ("specsched policy s", ["set"]),
        ("specsched top --int", ["--interval"]),
        ("specsched replay --pol", ["--policy"]),  # of another package
        ("specsched promote ", ["blue", "green"]),
        ("specsched cost show --scheduler g", ["green"]),
        ("specsched policy set thr", ["throughput", "threshold("]),
    ],
)
def test_bash_completes(line: str, offered: list[str], run_dir: Path) -> None:
    assert complete(line, run_dir) == offered


def test_where_there_is_no_run_directory_nothing_is_offered_or_said(tmp_path: Path) -> None:
    assert complete("specsched promote ", tmp_path / "none") == []
    tmp_path.chmod(0o777)
    assert complete("specsched promote ", tmp_path) == []


def test_policies_offered_are_those_that_schedulers_have() -> None:
    assert {each.removesuffix("(") for each in POLICIES} <= set(available_policies())
