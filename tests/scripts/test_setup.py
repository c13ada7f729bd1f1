"""What scripts/setup says where it cannot work, and while it works."""

from __future__ import annotations

import os
import re
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


PIP = """case "$*" in
    *ensurepip*|*version_info*) exit;;
    -VV) echo Python 3.11.9;;
    "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
    *"-e .[dev]"*)
        echo "Collecting torch"
        echo "  Downloading torch-2.11.0-cp311-cp311-linux_x86_64.whl (190.4 MB)"
        echo "  Downloading rich-14.0.0-py3-none-any.whl (243 kB)"
        echo "  Downloading typer-0.12.0-py3-none-any.whl (1.4 MB)"
        echo "Installing collected packages: torch, rich, typer"
        exit "${PIP_STATUS:-0}";;
esac
"""
"""A python whose pip needs no index."""


@pytest.fixture
def complete_checkout(checkout):
    for name in ("pyproject.toml", "constraints.txt"):
        (checkout / name).touch()
    (checkout / "scripts/get_promtool").write_text("#!/bin/sh\n")
    (checkout / "scripts/get_promtool").chmod(0o755)
    return checkout


def test_each_phase_and_large_download_is_a_line_with_its_seconds(complete_checkout):
    python = fake_python(complete_checkout, PIP)
    done = setup_with(python, complete_checkout)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^setup: +\d+ s: (.*)$", done.stderr, flags=re.MULTILINE)
    assert told == [
        "installing into .venv, a few minutes the first time",
        "making .venv",
        "installing packages; most of it is torch",
        "Downloading torch-2.11.0-cp311-cp311-linux_x86_64.whl (190.4 MB)",
        "unpacking 3 packages",
        "installing the model",
        "looking for promtool",
        "done",
    ]
    assert setup_with(python, complete_checkout).stderr == ""


def test_an_installation_that_fails_is_told_and_tried_again(complete_checkout):
    python = fake_python(complete_checkout, "PIP_STATUS=1\n" + PIP)
    for _ in range(2):
        done = setup_with(python, complete_checkout)
        assert done.returncode == 1
        assert "setup: installation failed (see above)" in done.stderr
