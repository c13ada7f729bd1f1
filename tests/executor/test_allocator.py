"""An executor on a CPU starts anew, once, with the settings of the C library that suit it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from specsched_protocol.huge_pages import allocator_can_be_told, huge_page_mode

pytestmark = pytest.mark.skipif(
    not allocator_can_be_told() and not os.environ.get("CI"),
    reason="this C library has no such settings",
)

VARIABLE = "GLIBC_TUNABLES"
AT_EACH_START = """
import json, os, sys
told = {"pid": os.getpid(), "arguments": sys.orig_argv[1:], "tunables": os.environ.get("%s")}
with open(os.environ["STARTS"], "a") as file:
    print(json.dumps(told), file=file)
"""
ASKS = "from specsched_executor.allocator import start_anew_with_settings as ask; ask()"


class Starts:
    """Runs Python programs, and keeps what the interpreter was at each start of their process."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "starts"
        self._modules = folder / "at-each-start"
        self._modules.mkdir()
        (self._modules / "sitecustomize.py").write_text(AT_EACH_START % VARIABLE)

    def of(self, *arguments: str, tunables: str | None = None) -> list[dict]:
        path = os.pathsep.join([str(self._modules), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "STARTS": str(self._file)}
        if tunables is not None:
            environment[VARIABLE] = tunables
        process = subprocess.Popen([sys.executable, *arguments], env=environment)
        self.status = process.wait(120)
        starts = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [each for each in starts if each["pid"] == process.pid]


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers of the suite have in their environment is for other tests."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_the_same_program_starts_once_more_with_settings(starts: Starts) -> None:
    first, second = starts.of("-c", ASKS, "an argument", "")
    assert starts.status == 0
    assert first["tunables"] is None
    assert "glibc.malloc.hugetlb=1" in second["tunables"].split(":")
    assert first["arguments"] == second["arguments"] == ["-c", ASKS, "an argument", ""]


def test_the_c_library_heeds_them(starts: Starts) -> None:
    """It ignores a list with one name or value that it does not know, and says nothing."""
    environment = "open('/proc/self/environ').read().split(chr(0))"
    print_them = (
        f"{ASKS}; print(next(e for e in {environment} if e.startswith('{VARIABLE}='))[15:])"
    )
    told = subprocess.run(
        [sys.executable, "-c", print_them], capture_output=True, text=True, check=True
    )
    settings = told.stdout.splitlines()[-1]  # after the log
    loader = next(Path("/").glob("lib*/ld-linux*.so*"), None)
    if loader is None:
        pytest.skip("the loader is not where it usually is")
    listed = subprocess.run(
        [loader, "--list-tunables"],
        env={VARIABLE: settings},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    values = dict(line.split(": ", 1) for line in listed.splitlines() if ": " in line)
    for setting in settings.split(":"):
        name, value = setting.split("=")
        assert int(values[name].split()[0], 0) == int(value)


@pytest.mark.parametrize("tunables", [None, "glibc.malloc.perturb=0"])
def test_processes_of_the_program_do_not_inherit_them(starts: Starts, tunables: str | None) -> None:
    child = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', CHECK]))"
    check = f"import os, sys; sys.exit(os.environ.get({VARIABLE!r}) != {tunables!r})"
    starts.of("-c", f"CHECK = {check!r}\n{ASKS}\n{child}", tunables=tunables)
    assert starts.status == 0


@pytest.mark.parametrize(
    "tunables", ["glibc.malloc.hugetlb=0", "glibc.malloc.check=0:glibc.malloc.arena_max=4"]
)
def test_what_the_user_set_stays(starts: Starts, tunables: str) -> None:
    (only,) = starts.of("-c", ASKS, tunables=tunables)
    assert only["tunables"] == tunables


def test_other_settings_of_the_user_go_along(starts: Starts) -> None:
    _, second = starts.of("-c", ASKS, tunables="glibc.malloc.perturb=0")
    assert second["tunables"].startswith("glibc.malloc.perturb=0:glibc.malloc.hugetlb=1:")


@pytest.mark.parametrize(("options", "num_starts"), [((), 2), (("--device", "cuda"), 1)])
def test_the_command_does_so_for_a_cpu(
    starts: Starts, tmp_path: Path, options: tuple[str, ...], num_starts: int
) -> None:
    no_model = tmp_path / "no-model.gguf"
    no_model.touch()
    arguments = ["-m", "specsched_executor", "--model", str(no_model), *options]
    arguments += ["--run-dir", str(tmp_path / "run"), "--port", "0", "--http-address", "off"]
    all_starts = starts.of(*arguments)
    assert starts.status == 2  # what is no model cannot be served
    assert [each["arguments"] for each in all_starts] == num_starts * [arguments]


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ("[always] madvise never\n", "always"),
        ("always [madvise] never\n", "madvise"),
        ("always madvise [never]\n", "never"),
        ("always madvise never\n", None),
        ("", None),
        ("\N{SNOWMAN}", None),
    ],
)
def test_for_whom_huge_pages_are(tmp_path: Path, content: str, mode: str | None) -> None:
    file = tmp_path / "enabled"
    file.write_text(content, encoding="utf-8")
    assert huge_page_mode(file) == mode


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    assert huge_page_mode(tmp_path / "enabled") is None
