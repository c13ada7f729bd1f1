"""The unit files: accepted by systemd, hardened as far as told, with options that exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.deploy.command_lines import RefusedError, read_options
from tests.deploy.unit_files import EXAMPLES, EXECUTOR, SCHEDULER, Unit, seconds
from tests.repository import ROOT

INSTANCE = "0.2.0"
UNITS = {EXECUTOR: EXECUTOR.name, SCHEDULER: f"specsched-scheduler@{INSTANCE}.service"}
PAGE = (ROOT / "docs" / "deployment.md").read_text()


def unit_of(example: Path) -> Path:
    return EXECUTOR if example.name.startswith("executor") else SCHEDULER


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a machine with the units, the user and both programs installed."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze is missing: apt-get install systemd")
        pytest.skip("needs systemd-analyze")
    root = tmp_path_factory.mktemp("machine")
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(unit, units)
        program = root / Unit.read(unit).command(INSTANCE)[0].lstrip("/")
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (root / "etc/passwd").write_text("specsched:x:990:990::/var/lib/specsched:/usr/sbin/nologin\n")
    shutil.copytree("/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    (root / "lib").symlink_to("usr/lib")
    return root


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], check=False, capture_output=True, text=True
    )


def version() -> str:
    return analyze("--version").stdout.split()[1]


def verify(machine: Path) -> subprocess.CompletedProcess[str]:
    return analyze("verify", f"--root={machine}", *UNITS.values())


def test_systemd_accepts_the_units(machine: Path) -> None:
    done = verify(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_systemd_accepts_each_drop_in(machine: Path, example: Path) -> None:
    told = example.read_text().split("\n", 1)[0]
    folder = machine / "etc/systemd/system" / f"{unit_of(example).name}.d"
    assert f"/etc/systemd/system/{folder.name}/" in told
    folder.mkdir(exist_ok=True)
    shutil.copy(example, folder)
    try:
        done = verify(machine)
    finally:
        shutil.rmtree(folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_check_finds_what_is_wrong(machine: Path) -> None:
    unit = machine / "etc/systemd/system/broken.service"
    unit.write_text("[Service]\nExecStart=/no/such/program\nWatchdogSecs=1\n")
    try:
        done = analyze("verify", f"--root={machine}", unit.name)
    finally:
        unit.unlink()
    assert done.returncode != 0
    assert "WatchdogSecs" in done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_exposure_is_what_the_page_tells(machine: Path, unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--root={machine}", UNITS[unit])
    assert done.returncode == 0, done.stderr
    (score,) = re.findall(r"Overall exposure level .*: ([\d.]+)", done.stdout)
    told = re.findall(rf"^\| `{re.escape(unit.name)}` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE)
    if f"systemd {version()}" in PAGE:
        assert told == [score]
    else:  # other versions count other things
        assert float(score) <= 2.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_what_the_processes_can_live_with(unit: Path) -> None:
    read = Unit.read(unit)
    assert read.value("Type") == "notify"
    assert read.values("MemoryDenyWriteExecute") == []  # both write machine code and run it
    cache = f"/var/cache/{read.value('CacheDirectory')}/"
    assert read.environment()["NUMBA_CACHE_DIR"].startswith(cache)
    # The directory that the sockets are in stays when the unit ends, and is the user's alone.
    assert read.value("RuntimeDirectoryPreserve") == "yes"
    assert read.value("RuntimeDirectoryMode") == "0700"
    words = read.command(INSTANCE)
    run_dir = words[words.index("--run-dir") + 1]
    assert run_dir == f"/run/{read.value('RuntimeDirectory')}"


def test_units_meet_in_one_directory_as_one_user() -> None:
    executor, scheduler = Unit.read(EXECUTOR), Unit.read(SCHEDULER)
    for key in ("User", "Group", "RuntimeDirectory", "CacheDirectory"):
        assert executor.value(key) == scheduler.value(key)
    assert f"u {executor.value('User')} " in (EXECUTOR.parent / "sysusers.conf").read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_options_exist(unit: Path) -> None:
    read = Unit.read(unit)
    program, *arguments = read.command(INSTANCE)
    assert Path(program).name == "specsched"
    options = read_options(arguments, read.environment(INSTANCE))
    assert options.run_dir == Path("/run/specsched")
    if unit == SCHEDULER:
        assert program == f"/opt/specsched/{INSTANCE}/bin/specsched"
        assert options.name == INSTANCE


def test_the_check_of_options_finds_a_wrong_one() -> None:
    with pytest.raises(RefusedError, match="--nmae"):
        read_options(["scheduler", "--nmae", "x"], {})
    with pytest.raises(RefusedError, match="SPECSCHED_SCHEDULER_POLICIES"):
        read_options(["scheduler"], {"SPECSCHED_SCHEDULER_POLICIES": "off"})
    with pytest.raises(RefusedError, match="heartbeat_ms = 1 "):
        read_options(["scheduler", "--heartbeat-ms", "1"], {})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_options_of_drop_ins_exist(example: Path, tmp_path: Path) -> None:
    unit = unit_of(example)
    files = Authority(tmp_path).issue("tls")
    files.ca.rename(tmp_path / "clients-ca.pem")
    read = Unit.read(unit, example)
    environ = read.environment(INSTANCE, {"d": str(tmp_path)})
    options = read_options(read.command(INSTANCE)[1:], environ)
    given = {name for name in environ if name.startswith("SPECSCHED_")}
    assert {type(options).env_name(field) for field in options.model_fields_set} >= given


def test_there_is_time_to_end_in_order() -> None:
    executor, scheduler = Unit.read(EXECUTOR), Unit.read(SCHEDULER)
    options = read_options(executor.command()[1:], {})
    assert seconds(executor.value("TimeoutStopSec")) > options.drain_timeout_s + 5
    options = read_options(scheduler.command(INSTANCE)[1:], {})
    # Handing over, letting executors go and ending calls may each take the grace.
    assert seconds(scheduler.value("TimeoutStopSec")) > 3 * options.shutdown_grace_ms / 1e3
