"""The gates on the protos notice what they are there for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

BUF = Path(sys.executable).with_name("buf")
PLAN = Path("specsched_protocol/v1/plan.proto")


def buf(protos: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BUF, *args], cwd=protos, check=False, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def protos(tmp_path):
    return shutil.copytree(ROOT / "protos", tmp_path / "protos")


def replace_in_plan(protos: Path, old: str, new: str) -> None:
    text = (protos / PLAN).read_text()
    assert text.count(old) == 1
    (protos / PLAN).write_text(text.replace(old, new))


def test_a_field_that_is_gone_is_a_breaking_change(protos):
    replace_in_plan(protos, "  uint64 source_step_id = 2;\n", "")
    done = buf(protos, "breaking", "--against", "released/specsched_v1.binpb")
    assert done.returncode != 0
    assert "source_step_id" in done.stdout


def test_a_new_field_is_not_a_breaking_change(protos):
    replace_in_plan(protos, "message Decision {\n", "message Decision {\n  uint32 added = 99;\n")
    done = buf(protos, "breaking", "--against", "released/specsched_v1.binpb")
    assert (done.returncode, done.stdout) == (0, "")


def test_an_enum_without_unspecified_is_a_lint_error(protos):
    replace_in_plan(protos, "MODEL_STATE_UNSPECIFIED = 0", "MODEL_STATE_UNKNOWN = 0")
    done = buf(protos, "lint")
    assert done.returncode != 0
    assert "MODEL_STATE_UNKNOWN" in done.stdout


def test_stubs_that_drifted_are_named(protos, tmp_path):
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts/gen_protos.py", tmp_path / "scripts")
    replace_in_plan(protos, "uint64 source_step_id = 2", "uint64 origin_step_id = 2")
    command = [sys.executable, script, "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "plan_pb2.pyi" in done.stdout
    assert "scheduler_pb2.py" not in done.stdout
