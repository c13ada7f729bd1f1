"""Two installations of the scheduler: two virtual environments, two wheels, one policy more.

Either environment has its own interpreter prefix and its own copy of the product, installed from a
wheel of its own version. Third-party packages are taken from this environment, by path, so that
nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Installation", "make_installations"]

ROOT = Path(__file__).resolve().parents[2]
NEXT_VERSION = "0.1.1.dev1"
POLICY = "one-each"
_COPIED = ("pyproject.toml", "README.md", "LICENSE")
_FOLDERS = ("protos", "scheduler_service", "executor", "kernels", "clients")
_POLICY_SOURCE = '''"""A policy that can be told apart: one draft per request."""

from specsched_scheduler.policies.base import PolicyChoice


class OneEach:
    """Verify the first draft of each request and no other."""

    parameters = ()

    def decide(self, step):
        """One each."""
        return PolicyChoice(budget=step.num_drafts(1), max_verify_len=1)
'''


@dataclass(frozen=True, slots=True)
class Installation:
    """One of the two. policy: what its schedulers decide by."""

    name: str
    version: str
    python: Path
    policy: str


def make_installations(directory: Path) -> tuple[Installation, Installation]:
    """Build both wheels from this checkout and install each into an environment of its own."""
    version = _version((ROOT / "pyproject.toml").read_text())
    first = _install(directory / "blue", version)
    second = _install(directory / "green", NEXT_VERSION)
    _add_policy(second)
    return (
        Installation("blue", version, first / "bin" / "python", "throughput"),
        Installation("green", NEXT_VERSION, second / "bin" / "python", POLICY),
    )


def _install(home: Path, version: str) -> Path:
    source = home / "source"
    source.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy(ROOT / name, source / name)
    for name in _FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    project = source / "pyproject.toml"
    ours = _version(project.read_text())
    project.write_text(
        project.read_text().replace(f'version = "{ours}"', f'version = "{version}"', 1)
    )
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        home,
        source,
    ]
    _run(*build)
    (wheel,) = home.glob("*.whl")
    environment = home / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = _site_packages(environment)
    # As a path only: the .pth file of the editable installation over there is not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel
    )
    _lend_compiled_code(packages)
    return environment


def _lend_compiled_code(packages: Path) -> None:
    """Give an installation what is compiled here already, from sources of the same content.

    numba keeps it in a folder named for that of the source; it is made to match.
    """
    for folder in _FOLDERS:
        for compiled in (ROOT / folder).rglob("__pycache__/compiled-*"):
            home = packages / compiled.parents[1].relative_to(ROOT / folder)
            there = hashlib.sha1(os.fsencode(home), usedforsecurity=False).hexdigest()
            for place in filter(Path.is_dir, compiled.iterdir()):
                target = home / "__pycache__" / compiled.name / f"{home.name}_{there}"
                shutil.copytree(place, target, dirs_exist_ok=True)


def _add_policy(environment: Path) -> None:
    packages = _site_packages(environment)
    (packages / "soak_policy.py").write_text(_POLICY_SOURCE)
    facts = packages / "soak_policy-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: soak-policy\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        f"[specsched.policies]\n{POLICY} = soak_policy:OneEach\n"
    )


def _site_packages(environment: Path) -> Path:
    (packages,) = (environment / "lib").glob("python*/site-packages")
    return packages


def _version(project: str) -> str:
    match = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    if match is None:
        raise RuntimeError("pyproject.toml names no version")
    return match[1]


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command} failed:\n{done.stdout}\n{done.stderr}")
