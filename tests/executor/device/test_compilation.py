"""Every kernel compiles for an H200, in the variants that steps launch, without one at hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import specsched_kernels.triton

ROOT = Path(__file__).parents[3]
MAX_SHARED_BYTES = 227 << 10
"""What a block may have on compute capability 9.0."""


def defined_kernels() -> set[str]:
    folder = Path(next(iter(specsched_kernels.triton.__path__)))
    jit = re.compile(r"^@triton\.jit[^@]*?^def (\w+_kernel)\(", re.MULTILINE | re.DOTALL)
    return {name for path in folder.glob("*.py") for name in jit.findall(path.read_text())}


def test_every_kernel_compiles_for_an_h200() -> None:
    pytest.importorskip("triton")
    cache = ROOT / ".cache" / "triton"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.executor.device.compile_for_hopper"],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    shared_bytes = json.loads(result.stdout)
    assert set(shared_bytes) == defined_kernels()
    largest = {name: max(sizes) for name, sizes in shared_bytes.items()}
    assert max(largest.values()) <= MAX_SHARED_BYTES, largest
