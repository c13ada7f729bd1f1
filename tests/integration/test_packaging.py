"""What a user gets: the wheel, the images, an installation without torch, the editable install.

The environments are real: the steps of the images are carried out in empty ones, so that pip
installs the wheel and what it depends on from the registry, and a dependency that is missing in
pyproject.toml shows here and nowhere else.
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

from tests.deploy.containerfile import Image, read_targets
from tests.repository import PACKAGES, ROOT, sources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TARGETS = read_targets()


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
def images(tmp_path_factory):
    """Makes an image's file system with an environment that is empty at first."""

    def make(name):
        root = tmp_path_factory.mktemp(f"{name} image")
        venv.create(root / "env", with_pip=True)
        return Image(root, root / "env")

    return make


@pytest.fixture(scope="module")
def scheduler_image(images):
    """The slim image: `pip install specsched` and no extra."""
    build, image = images("build"), images("scheduler")
    build.build(TARGETS["build"], {})
    image.build(TARGETS["scheduler"], {"build": build})
    return image


@pytest.fixture(scope="module")
def plain(scheduler_image):
    """Programs of that environment."""
    return scheduler_image.bin


def plain_run(
    plain: Path, *command: str | Path, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of the plain environment; nothing of this one leaks in."""
    return run(plain / command[0], *command[1:], env={"PATH": os.defpath, **settings})


def test_wheel_holds_sources_protos_stubs_page_and_licences(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, root in PACKAGES.items():
        assert f"{package}/py.typed" in names
        assert {str(p.relative_to(root)) for p in sources(package)} <= names
    protos = {str(p.relative_to(ROOT / "protos")) for p in (ROOT / "protos").rglob("*.proto")}
    stubs = {p.removesuffix(".proto") + end for p in protos for end in ("_pb2.py", "_pb2_grpc.pyi")}
    assert protos | stubs <= names
    page = PACKAGES["specsched_scheduler"] / "specsched_scheduler/page/static"
    files = {path for path in page.rglob("*") if path.is_file()}
    assert {str(path.relative_to(ROOT / "scheduler_service")) for path in files} <= names
    assert any(name.endswith("uplot/LICENSE") for name in names)
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


def test_gateway_image_runs_the_pinned_smg(images):
    image = images("gateway")
    image.build(TARGETS["gateway"], {})
    assert json.loads(TARGETS["gateway"].last("ENTRYPOINT")) == ["python", "-m", "smg"]
    done = plain_run(image.bin, "python", "-m", "smg", "launch", "--help")
    assert done.returncode == 0, done.stderr
    pinned = importlib.metadata.version("smg")
    (there,) = (image.environment / "lib").glob("python*/site-packages/smg-*.dist-info")
    assert there.name == f"smg-{pinned}.dist-info"


# The last ones, since the image of the executor is made in the environment of the scheduler's.


@pytest.fixture(scope="module")
def executor_image(scheduler_image):
    assert TARGETS["executor"].base == "scheduler"
    assert TARGETS["executor-demo"].base == "executor"
    for name in ("executor", "executor-demo"):
        scheduler_image.build(TARGETS[name], {})
    return scheduler_image.bin


def test_executor_image_serves_the_packaged_model(executor_image, tmp_path):
    probe = (
        "from specsched_executor.config import ExecutorConfig;"
        "from specsched_executor.model import LoadOptions, load_model;"
        "print(load_model(None, LoadOptions()).source.name)"
    )
    done = plain_run(executor_image, "python", "-c", probe, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().lower().startswith("smollm2")


def test_images_begin_with_programs_that_they_install(executor_image):
    for name in ("scheduler", "gateway", "idle"):
        assert TARGETS[name].base.startswith("python:3.11")
    (program,) = json.loads(TARGETS["scheduler"].last("ENTRYPOINT"))
    assert (executor_image / program).exists()
