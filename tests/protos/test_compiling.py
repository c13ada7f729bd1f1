"""The cache of compiled code: found again, and not where anything that it is made from differs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import specsched_protocol

_FILES = {
    "__init__.py": "",
    "units.py": "FACTOR = 2\n",
    "heat.py": """
from . import units
from specsched_protocol.compiling import njit

@njit(cache=True)
def heated(degrees):
    return degrees * units.FACTOR
""",
    "oven.py": """
from specsched_protocol.compiling import njit
from specsched_oven.heat import heated

@njit(cache=True)
def bake(degrees):
    return heated(degrees) + 1
""",
    "fridge.py": "COLD = 4\n",
}
_PROGRAM = """
from specsched_oven.oven import bake
print(bake(100), sum(bake.stats.cache_hits.values()))
"""
_HEARTBEAT = """
import numpy as np
from specsched_protocol.shm import lane
words = np.zeros(512, np.int64)
lane.beat(words, 7)
print(words.tolist().index(7), sum(lane.beat.stats.cache_hits.values()))
"""
_NUMBA_NJIT = re.compile(r"from numba import .*\bnjit\b|numba\.njit\b")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "specsched_oven"
    folder.mkdir()
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    return folder


def bake(package: Path, **environ: str) -> str:
    """What a process that bakes at 100 gets, and how much of that it found compiled."""
    return run(_PROGRAM, package.parent, Path(specsched_protocol.__file__).parents[1], **environ)


def run(program: str, *roots: Path, **environ: str) -> str:
    process = start(program, *roots, **environ)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output.strip()


def start(
    program: str, *roots: Path, arguments: tuple[str, ...] = (), **environ: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "PATH": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rewrite(path: Path, text: str) -> None:
    """Another content of the same size and age, as an installer may leave it."""
    before = path.stat()
    assert len(text) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_compiled_code_is_found_again_until_a_constant_of_a_callee_changes(package: Path) -> None:
    assert bake(package) == "201 0"
    (package / "fridge.py").write_text("COLD = 3\n")
    assert bake(package) == "201 1"
    rewrite(package / "units.py", "FACTOR = 3\n")
    assert bake(package) == "301 0"
    rewrite(package / "units.py", "FACTOR = 2\n")
    assert bake(package) == "201 1"


def test_processes_that_start_together_compile_once(package: Path) -> None:
    """With a signature each of their own besides, none takes another one's code for its own."""
    program = """
import sys
from specsched_oven.oven import bake
kind = (int, float, complex)[int(sys.argv[1])]
print(bake(100), bake(kind(1)), sum(bake.stats.cache_hits.values()))
"""
    roots = (package.parent, Path(specsched_protocol.__file__).parents[1])
    running = [start(program, *roots, arguments=(str(kind),)) for kind in (0, 1, 2)]
    outputs = [process.communicate(timeout=100)[0].split() for process in running]
    assert [each[:2] for each in outputs] == [["201", "3"], ["201", "3.0"], ["201", "(3+0j)"]]
    assert sum(int(each[2]) for each in outputs) == 2
    for kind in (0, 1, 2):
        again = start(program, *roots, arguments=(str(kind),)).communicate(timeout=100)[0]
        assert again.split() == [*outputs[kind][:2], "1" if kind == 0 else "2"]


def test_change_of_the_function_itself_is_seen_whatever_its_age(package: Path) -> None:
    assert bake(package) == "201 0"
    rewrite(package / "oven.py", _FILES["oven.py"].replace("+ 1", "+ 5"))
    assert bake(package) == "205 0"


def test_only_what_was_used_last_is_kept(package: Path) -> None:
    def kept() -> list[str]:
        return sorted(each.name for each in (package / "__pycache__").glob("compiled-*-oven-*"))

    assert bake(package) == "201 0"
    (first,) = kept()
    for number in range(2, 6):
        rewrite(package / "oven.py", _FILES["oven.py"].replace("+ 1", f"+ {number}"))
        assert bake(package) == f"{200 + number} 0"
        rewrite(package / "oven.py", _FILES["oven.py"])
        assert bake(package) == "201 1"  # used in between, so it outlives the others
    assert len(kept()) == 4
    assert first in kept()
    assert list((package / "__pycache__").glob("compiled-*-heat-*"))


def test_process_whose_folder_is_removed_meanwhile_goes_on(package: Path) -> None:
    program = """
import pathlib, shutil, sys
from specsched_oven.oven import bake
for folder in pathlib.Path(sys.path[1]).rglob("compiled-*"):
    shutil.rmtree(folder)
print(bake(100), bake(1.5))
"""
    root = Path(specsched_protocol.__file__).parents[1]
    assert run(program, package.parent, root) == "201 4.0"
    assert bake(package) == "201 1"


def test_cache_goes_where_numba_is_told_to(package: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "cache"
    assert bake(package, NUMBA_CACHE_DIR=str(elsewhere)) == "201 0"
    assert list(elsewhere.rglob("*.nbi"))
    assert not list(package.rglob("*.nbi"))
    assert bake(package, NUMBA_CACHE_DIR=str(elsewhere)) == "201 1"


def test_cache_goes_to_the_users_folder_where_the_sources_are_read_only(
    package: Path, tmp_path: Path
) -> None:
    (package / "__pycache__").write_text("a file, so that nobody, root neither, can write below")
    home = tmp_path / "home"
    assert bake(package, XDG_CACHE_HOME=str(home)) == "201 0"
    assert list((home / "specsched").rglob("*.nbi"))
    assert bake(package, XDG_CACHE_HOME=str(home)) == "201 1"


def test_code_runs_where_nothing_can_be_kept(package: Path, tmp_path: Path) -> None:
    (package / "__pycache__").write_text("")
    assert bake(package, XDG_CACHE_HOME=str(package / "units.py")) == "201 0"
    assert bake(package, XDG_CACHE_HOME=str(package / "units.py")) == "201 0"


def test_shared_memory_code_follows_a_layout_that_changed(tmp_path: Path) -> None:
    package = tmp_path / "specsched_protocol"
    ignored = shutil.ignore_patterns("__pycache__", "v1")
    shutil.copytree(Path(specsched_protocol.__file__).parent, package, ignore=ignored)
    layout = package / "shm" / "layout.py"
    before = run(_HEARTBEAT, tmp_path)
    assert run(_HEARTBEAT, tmp_path) == before.replace(" 0", " 1")
    moved = re.sub(r"^LANE_HEARTBEAT = .*$", "LANE_HEARTBEAT = 5", layout.read_text(), flags=re.M)
    layout.write_text(moved)
    assert not before.startswith("5 ")
    assert run(_HEARTBEAT, tmp_path) == "5 0"


def test_all_code_that_is_kept_is_kept_this_way() -> None:
    root = Path(__file__).parents[2]
    by_numba_alone = [
        str(path.relative_to(root))
        for folder in ("protos", "scheduler_service", "executor", "kernels", "tests")
        for path in (root / folder).rglob("*.py")
        if path.name not in {"compiling.py", "test_compiling.py"}
        and _NUMBA_NJIT.search(text := path.read_text(encoding="utf-8"))
        and "cache=True" in text
    ]
    assert by_numba_alone == []
