"""A scheduler that starts takes no cores that an executor on the machine computes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT_THREADS = """
import os
import specsched_scheduler.commands
print(len(os.listdir("/proc/self/task")), os.environ["OPENBLAS_NUM_THREADS"])
"""


def start(**environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS],
        check=True,
        capture_output=True,
        text=True,
        env=kept | environment,
    )
    return done.stdout.split()


@pytest.mark.skipif(os.cpu_count() == 1, reason="there is one thread in any case")
def test_loading_it_starts_no_thread() -> None:
    assert start() == ["1", "1"]


def test_the_users_choice_stands() -> None:
    assert start(OPENBLAS_NUM_THREADS="2")[1] == "2"
