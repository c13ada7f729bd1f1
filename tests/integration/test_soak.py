"""Three swaps between two installed versions and three kill -9 under load of 16 clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tiny_checkpoint import write_tiny_checkpoint
from tests.repository import ROOT

SOAK = (sys.executable, "-m", "scripts.soak", "--swaps", "3", "--kills", "3")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_nothing_is_noticed_of_swaps_and_kills(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny")
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [*SOAK, "--model", model, "--directory", tmp_path, "--out", out],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    assert figures["faults"] == []
    assert len(figures["versions"]) == 2
    assert figures["concurrency"] == 16
    phases = figures["phases"]
    assert (phases["swap"]["events"], phases["kill"]["events"]) == (3, 3)
    # In flight all the time: answers came in every phase, by plans of either version.
    assert phases["swap"]["planned_steps"] > 0
    assert phases["kill"]["answers"] > 0
    assert figures["switches"]["promoted"] >= 3
    after_kills = ("lost", "returned", "stand_in")
    assert sum(figures["switches"].get(reason, 0) for reason in after_kills) >= 3
    # Bounded: nothing is kept of schedulers that are gone.
    before, after = figures["executor_before"], figures["executor_after"]
    assert after["descriptors"] <= before["descriptors"] + 8
    assert after["threads"] <= before["threads"] + 8
