"""What scripts/setup says where it cannot work."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.repository import ROOT


@pytest.fixture
def checkout(tmp_path):
    """A copy in which nothing that setup does can touch this environment."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts")
    return tmp_path


def setup_with(python: str, checkout) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts/setup"],
        env={"PATH": os.defpath, "PYTHON": python},
        check=False,
        capture_output=True,
        text=True,
    )


def fake_python(checkout, script: str) -> str:
    path = checkout / "python"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_a_python_that_is_not_there_is_named(checkout):
    done = setup_with("python9.9", checkout)
    assert done.returncode != 0
    assert "no 'python9.9' on the PATH" in done.stderr


def test_a_python_that_is_too_old_is_named_with_its_version(checkout):
    python = fake_python(checkout, 'test "$1" = -V && echo Python 3.8.10 || exit 1\n')
    done = setup_with(python, checkout)
    assert done.returncode != 0
    assert "is Python 3.8.10, but 3.11 or newer is needed" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install(checkout):
    python = fake_python(checkout, 'case "$2" in *ensurepip*) exit 1;; esac\n')
    done = setup_with(python, checkout)
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr
