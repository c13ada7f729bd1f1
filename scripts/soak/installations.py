"""Two installations of the scheduler: two virtual environments, two wheels, one policy more.

Either environment has its own interpreter prefix and its own copy of the product, installed from a
wheel of its own version. Third-party packages are taken from this environment, by path, so that
nothing is downloaded. Where nothing can be built, two trees of packages take their place, found by
PYTHONPATH ahead of everything else and with metadata as an installer writes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """One of the two. policy: what its schedulers decide by. environment: to start them with."""

    name: str
    version: str
    python: Path
    policy: str
    environment: Mapping[str, str] = field(default_factory=dict)


def make_installations(
    directory: Path, *, as_trees: bool = False, policy: str | None = None
) -> tuple[Installation, Installation]:
    """Build both wheels from this checkout and install each into an environment of its own.

    as_trees: lay the packages out by copying instead; this interpreter runs them. policy: both
    decide by it, and are told apart by their versions only.
    """
    make = _lay_out if as_trees else _install
    version = _version((ROOT / "pyproject.toml").read_text())
    first = make(directory / "blue", "blue", version, policy or "throughput")
    second = make(directory / "green", "green", NEXT_VERSION, policy or POLICY)
    return first, second


def _lay_out(home: Path, name: str, version: str, policy: str) -> Installation:
    packages = home / "packages"
    for folder in _FOLDERS:
        (package,) = (ROOT / folder).glob("specsched_*")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, packages / package.name, ignore=ignored)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _write_metadata(packages, project["name"], version, project["entry-points"])
    _lend_compiled_code(packages)
    _add_policy_of(policy, packages)
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    return Installation(name, version, Path(sys.executable), policy, environment)


def _install(home: Path, name: str, version: str, policy: str) -> Installation:
    source = home / "source"
    source.mkdir(parents=True)
    for file in _COPIED:
        shutil.copy(ROOT / file, source / file)
    for folder in _FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
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
    _add_policy_of(policy, packages)
    return Installation(name, version, environment / "bin" / "python", policy)


def _lend_compiled_code(packages: Path) -> None:
    """Give an installation what is compiled here already, from sources of the same content.

    numba keeps it in a folder named for that of the source; it is made to match.
    """
    shared = os.environ.get("NUMBA_CACHE_DIR")
    for folder in _FOLDERS:
        for source in {path.parent for path in (ROOT / folder).rglob("*.py")}:
            home = packages / source.relative_to(ROOT / folder)
            kept = Path(shared) if shared else source / "__pycache__"
            lent = Path(shared) if shared else home / "__pycache__"
            for compiled in kept.glob(f"compiled-*/{_numba_name(source)}"):
                target = lent / compiled.parent.name / _numba_name(home)
                shutil.copytree(compiled, target, dirs_exist_ok=True)


def _numba_name(folder: Path) -> str:
    """What numba calls the code compiled from the sources in a folder."""
    digest = hashlib.sha1(os.fsencode(folder), usedforsecurity=False).hexdigest()
    return f"{folder.name}_{digest}"


def _add_policy_of(policy: str, packages: Path) -> None:
    if policy == POLICY:
        (packages / "soak_policy.py").write_text(_POLICY_SOURCE)
        entry_points = {"specsched.policies": {POLICY: "soak_policy:OneEach"}}
        _write_metadata(packages, "soak-policy", "1", entry_points)


def _write_metadata(
    packages: Path, name: str, version: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """What tells Python of an installed distribution."""
    facts = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines: list[str] = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{point} = {place}" for point, place in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")


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
