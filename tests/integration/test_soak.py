"""Swaps between two installed versions, there and back, and kill -9 under load of 16 clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.soak.report import growth_faults
from tests.integration.tiny_checkpoint import write_tiny_checkpoint
from tests.repository import ROOT

SOAK = (
    sys.executable,
    "-m",
    "scripts.soak",
    "--swaps",
    "2",
    "--kills",
    "2",
    "--quiet-seconds",
    "1",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_nobody_notices(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny")
    out, record_folder = tmp_path / "figures.json", tmp_path / "record"
    paths = ["--model", model, "--directory", tmp_path, "--out", out, "--record", record_folder]
    done = subprocess.run(
        [*SOAK, *paths],
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
    assert (phases["swap"]["events"], phases["kill"]["events"]) == (2, 2)
    # In flight all the time: answers came in every phase, by plans of either version.
    assert phases["swap"]["planned_steps"] > 0
    assert phases["kill"]["answers"] > 0
    assert figures["switches"]["promoted"] >= 2
    after_kills = ("lost", "returned", "stand_in")
    assert sum(figures["switches"].get(reason, 0) for reason in after_kills) >= 2
    # Nothing is kept of schedulers and requests that are gone: growth would be among the faults.
    before, after = figures["executor_before"], figures["executor_after"]
    assert growth_faults(before, after) == []
    (record,) = record_folder.iterdir()
    recorded = json.loads(record.read_text())
    assert recorded["command"] == 'make soak SOAK="--swaps 2 --kills 2 --record"'
    assert [each.get("phase") for each in recorded["results"]] == [*phases, None]


def test_growth_of_a_leak_is_a_fault() -> None:
    before = {"resident_kib": 594 * 1024, "descriptors": 18, "threads": 14}
    assert growth_faults(before, before | {"resident_kib": 640 * 1024, "descriptors": 24}) == []
    assert growth_faults(before, before | {"resident_kib": 715 * 1024}) == [
        "memory grew by 121 MiB"
    ]
    assert growth_faults(before, before | {"descriptors": 27}) == ["descriptors grew from 18 to 27"]
