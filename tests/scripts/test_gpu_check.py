"""`make gpu-check`: every part runs, whatever became of those before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts import gpu_check
from scripts.gpu_check import Part, Result
from tests.integration.processes import wait_until
from tests.repository import ROOT

RECORD = ROOT / "docs/benchmarks/raw/row_kernels.nvidia-h200.json"
HANGS = """
import os, subprocess, time, pathlib
def test_it():
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path({pid!r}).write_text(f"{{child.pid}} ")
    child.wait()
"""


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)


def part_of(folder: Path, source: str, timeout_s: float = 120.0) -> Part:
    path = folder / "test_part.py"
    path.write_text(source)
    return Part("part", (str(path),), timeout_s)


def test_what_needs_a_gpu_is_in_a_part(tmp_path):
    found = gpu_check.parts(tmp_path, is_quick=False, jobs=2, model=Path("a.gguf"))
    tests, *benches = found
    assert "tests/kernels" in tests.arguments
    assert "tests/executor/model/test_deepseek_on_gpu.py" in tests.arguments
    assert not any("bench/" in each or "kernels/" in each for each in tests.arguments)
    names = [each.name for each in benches]
    assert len(names) == len(set(names))
    assert {"step_trace", "verify_kernel", "sparse_model"} <= set(names)
    assert all("--bench-model=a.gguf" in each.arguments for each in benches)
    quick = gpu_check.parts(tmp_path, is_quick=True, jobs=2)
    assert quick[0] == tests
    assert {"verify_kernel", "sparse_attention_kernels"} <= {each.name for each in quick}
    assert not {"step_trace", "sparse_model"} & {each.name for each in quick}


@pytest.mark.parametrize(
    ("source", "is_success", "summary"),
    [
        ("def test_a(): pass\ndef test_b(): pass", True, "2 passed"),
        ("def test_a(): assert False", False, "1 failed"),
        ("", False, "nothing ran"),
        ("import no_such_module", False, "1 error"),
        ("import os\ndef test_a(): os._exit(7)", False, "pytest ended with 7"),
    ],
)
def test_how_a_part_ended_is_told(tmp_path, source, is_success, summary):
    result = gpu_check.run(part_of(tmp_path, source), tmp_path / "log")
    assert (result.is_success, result.summary) == (is_success, summary)


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_its_children(tmp_path):
    pid = tmp_path / "pid"
    part = part_of(tmp_path, HANGS.format(pid=str(pid)), timeout_s=20.0)
    result = gpu_check.run(part, tmp_path / "log")
    assert (result.is_success, result.summary) == (False, "stopped after 20 s")
    child = int(pid.read_text())
    wait_until(lambda: not _is_running(child))


def _is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


@pytest.mark.parametrize(("fails", "status"), [(False, 0), (True, 1)])
def test_all_parts_run_and_the_table_comes_last(tmp_path, monkeypatch, capsys, fails, status):
    asked = [Part(name, (), 1.0) for name in ("tests", "one", "two")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "parts", lambda *_, **__: asked)

    def run(part: Part, log: Path) -> Result:
        log.write_text("what broke\n")
        shutil.copy(RECORD, log.parent)
        return Result(part, not (fails and part.name == "one"), "3 passed", 1.0)

    monkeypatch.setattr(gpu_check, "run", run)
    old = tmp_path / "old.json"
    old.write_text("{}")
    assert gpu_check.main(["quick", "--folder", str(tmp_path)]) == status
    said = capsys.readouterr().out
    assert ("what broke" in said) == fails
    assert said.index("Medians") < said.index("What needs a GPU") < said.rindex("two")
    assert not old.exists()


def test_told_to_end_it_shows_what_there_is(tmp_path, monkeypatch, capsys):
    """By make or a time limit around it, so with SIGTERM."""
    asked = [Part(name, (), 60.0) for name in ("tests", "one", "two")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "parts", lambda *_, **__: asked)

    def run(part: Part, log: Path) -> Result:
        if part.name == "one":
            os.kill(os.getpid(), signal.SIGTERM)
        return Result(part, True, "3 passed", 1.0)

    monkeypatch.setattr(gpu_check, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert gpu_check.main(["quick", "--folder", str(tmp_path)]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr().out
    assert "3 passed" in said
    assert said.index("What needs a GPU") < said.index("ended before one was through")
    assert "two" not in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu_check.main(["full"]) == 1
    assert "torch sees no GPU" in capsys.readouterr().out


def test_make_installs_nothing_into_an_interpreter_that_is_given():
    command = [
        "make",
        "-n",
        "--no-print-directory",
        "gpu-check",
        f"GPU_PYTHON={sys.executable}",
        "MODEL=a b.gguf",
    ]
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{sys.executable} -m scripts.gpu_check full ")
    assert line.endswith('--model "a b.gguf"')
