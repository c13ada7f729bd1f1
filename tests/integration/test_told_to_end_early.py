"""A program that is told to end while it is still imported ends quietly, with its one status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SIGNAL_AT_IMPORT = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT_OF"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Finder())
if os.environ["AT_IMPORT_OF"] == "nothing" and "GLIBC_TUNABLES" in os.environ:
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
"""
"""Sends the signal when a module is about to be imported; "nothing": when Python starts anew."""

SPECSCHED = ("-c", "from specsched_client.cli import main; main()")
INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "module", "number", "status"),
    [
        ((*SPECSCHED, "scheduler"), "typer", INT, 0),
        ((*SPECSCHED, "scheduler"), "specsched_scheduler.commands", TERM, 0),
        ((*SPECSCHED, "executor"), "specsched_executor.config", INT, 0),
        ((*SPECSCHED, "executor"), "nothing", INT, 0),
        ((*SPECSCHED, "executor"), "specsched_executor.serve", TERM, 0),
        ((*SPECSCHED, "status"), "typer", INT, 130),
        ((*SPECSCHED, "status"), "grpc", INT, 130),
        ((*SPECSCHED, "bench", "serve", "--prompts", "x"), "numpy", INT, 130),
        (("-m", "specsched_scheduler"), "specsched_protocol.settings", INT, 0),
        (("-m", "specsched_executor"), "specsched_executor.config", TERM, 0),
    ],
)
def test_the_end_is_quiet_and_has_one_status(
    tmp_path: Path,
    arguments: tuple[str, ...],
    module: str,
    number: signal.Signals,
    status: int,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_AT_IMPORT)
    given = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    path = os.pathsep.join([str(tmp_path), *filter(None, [given.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *arguments],
        env=given
        | {"PYTHONPATH": path, "AT_IMPORT_OF": module, "SIGNAL": str(int(number))}
        | {"SPECSCHED_RUN_DIR": str(tmp_path / "run")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
