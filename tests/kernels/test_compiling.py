"""The cache of compiled kernels: found again, and not where the sources differ."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import specsched_kernels

_PROGRAM = """
import numpy as np
from specsched_kernels.cpu import rows
x = np.ones((2, 16), np.float32)
rows.rms_norm(x, np.ones(16, np.float32), np.float32(0.0), x, 0, 2)
stats = rows.rms_norm.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def run(root: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_change_in_any_file_compiles_all_again(tmp_path):
    source = Path(specsched_kernels.__file__).parent
    package = tmp_path / "specsched_kernels"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "triton"))
    assert run(tmp_path) == "0 1"
    assert run(tmp_path) == "1 0"
    simd = package / "cpu" / "simd.py"
    simd.write_text(simd.read_text() + "\n# changed\n")
    assert run(tmp_path) == "0 1"
