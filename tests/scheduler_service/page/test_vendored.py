"""The library that charts are drawn with is the one that was pinned, with its licence."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import specsched_scheduler.page

from tests.repository import ROOT

FOLDER = Path(specsched_scheduler.page.__file__).parent / "static/vendor/uplot"


def test_files_are_those_that_were_fetched():
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split()) for line in lines if not line.startswith("#"))
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert found == sums
    assert "MIT License" in (FOLDER / "LICENSE").read_text()


def test_the_version_is_the_pinned_one():
    (pinned,) = re.findall(r"^version=(\S+)$", (ROOT / "scripts/get_uplot").read_text(), re.M)
    assert (FOLDER / "SHA256SUMS").read_text().startswith(f"# uPlot {pinned};")
    assert "uPlot.js" in (FOLDER / "uPlot.esm.js").read_text()[:400]
