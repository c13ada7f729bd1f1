"""What a user gets: the wheel, an installation without torch, the editable install.

The plain environment is real: pip installs the wheel and what it depends on from the registry, so a
dependency that is missing in pyproject.toml shows here and nowhere else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.repository import PACKAGES, ROOT, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(
    *command: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=540, env=env, cwd="/"
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that comes out of the source distribution, as a release builds it."""
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory):
    """Programs of an environment that holds `pip install specsched` and no extra."""
    home = tmp_path_factory.mktemp("plain env")
    venv.create(home, with_pip=True)
    pip = [
        home / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
    ]
    done = run(*pip, wheel)
    assert done.returncode == 0, done.stderr
    return home / "bin"


def plain_run(
    plain: Path, *command: str | Path, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of the plain environment; nothing of this one leaks in."""
    return run(plain / command[0], *command[1:], env={"PATH": os.defpath, **settings})


def test_wheel_holds_sources_protos_stubs_and_licence(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, root in PACKAGES.items():
        assert f"{package}/py.typed" in names
        assert {str(p.relative_to(root)) for p in sources(package)} <= names
    protos = {str(p.relative_to(ROOT / "protos")) for p in (ROOT / "protos").rglob("*.proto")}
    stubs = {p.removesuffix(".proto") + end for p in protos for end in ("_pb2.py", "_pb2_grpc.pyi")}
    assert protos | stubs <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_holds_nothing_else(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    version = importlib.metadata.version("specsched")
    assert tops == {*PACKAGES, f"specsched-{version}.dist-info"}


def test_plain_install_has_no_torch(plain):
    done = plain_run(plain, "python", "-c", "import torch")
    assert "No module named 'torch'" in done.stderr


def test_plain_install_lists_every_subcommand(plain):
    done = plain_run(plain, "specsched", "--help")
    assert done.returncode == 0, done.stderr
    for command in ("executor", "scheduler", "generate", "plan", "status", "policy"):
        assert command in done.stdout


def test_plain_install_plans(plain, tmp_path):
    (cases_file,) = (ROOT / "tests").rglob("budget.json")
    cases = json.loads(cases_file.read_text())
    file = tmp_path / "requests.json"
    file.write_text(json.dumps([case["request"] for case in cases]))
    done = plain_run(plain, "specsched", "plan", file, "--json")
    assert done.returncode == 0, done.stderr
    budgets = [answer["budget"] for answer in json.loads(done.stdout)]
    assert budgets == [case["expect"]["budget"] for case in cases]


def test_executor_without_torch_says_what_to_install(plain):
    done = plain_run(plain, "specsched", "executor")
    assert done.returncode == 5, done.stderr
    assert "specsched[executor]" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_this_environment_is_the_editable_install():
    text = importlib.metadata.distribution("specsched").read_text("direct_url.json")
    assert json.loads(text or "{}").get("dir_info") == {"editable": True}
    for package, root in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        assert Path(spec.origin).is_relative_to(root / package)
