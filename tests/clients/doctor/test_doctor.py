"""`specsched doctor`: each fault is made for real, and found by its code with a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from specsched_client.cli.doctor import examination
from specsched_client.cli.doctor import gpu as gpu_check
from specsched_client.cli.doctor.findings import Code
from specsched_client.cli.doctor.huge_pages import check_huge_pages
from specsched_protocol.handoff import HandoffServer
from specsched_protocol.run_dir import RunDir
from specsched_protocol.start_marks import marked_as_starting
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2
from specsched_protocol.versions import FEATURES, PROTOCOL_RANGE
from structlog.testing import capture_logs

from tests.clients.conftest import FakeScheduler, Run
from tests.executor.gateway.fakes import (
    FakeEngine,
    FakeStats,
    serving,
    serving_in_thread,
)
from tests.repository import ROOT

NOBODY = "127.0.0.1:1"
ALONE = 65534
"""A user who owns nothing here."""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can make this fault"
)


class Doctor:
    """Runs the command and keeps its findings by code."""

    def __init__(self, run: Run, root: Path) -> None:
        self._run = run
        self.root = root

    def examine(self, *options: str) -> dict[str, dict[str, str]]:
        options = ("--target", NOBODY, *options)
        code, out, _ = self._run("doctor", "--json", "--timeout", "2", *options)
        return self.told(out, code)

    @staticmethod
    def told(out: str, code: int) -> dict[str, dict[str, str]]:
        report = json.loads(out)
        findings = report["findings"]
        assert code == (report["worst"] == "error")
        for each in findings:
            assert bool(each["remedy"]) == (each["severity"] != "ok"), each
        return {each["code"]: each for each in findings}

    def finds(self, code: Code, severity: str, *options: str) -> dict[str, str]:
        """The finding of this code, which must be of this severity."""
        findings = self.examine(*options)
        assert code in findings, sorted(findings)
        assert findings[code]["severity"] == severity
        return findings[code]


@pytest.fixture(autouse=True)
def _no_gpu_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading torch takes seconds; the tests of the GPU do it."""
    monkeypatch.setattr(gpu_check, "entry_points", lambda group: [])


@pytest.fixture
def mode_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's setting for huge pages, on a machine without a GPU."""
    file = tmp_path / "enabled"
    file.write_text("[always] madvise never\n")
    monkeypatch.setattr(examination, "gpu_nodes", list)
    monkeypatch.setattr(examination, "check_huge_pages", lambda: check_huge_pages(file))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for folder in (root, root / "schedulers", root / "executors"):
        folder.mkdir(mode=0o700)
    return root


@pytest.fixture
def doctor(run: Run, root: Path, mode_file: Path) -> Doctor:
    return Doctor(run, root)


def listen(path: Path, *, mode: int = 0o600) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen()
    return listener


def in_process(prefix: list[str], root: Path, *module: str) -> dict[str, dict[str, str]]:
    """The same in a process of its own, which `prefix` sets up."""
    script = "from specsched_client.cli import main; main()"
    start = ["-m", *module] if module else ["-c", script]
    done = subprocess.run(
        [*prefix, sys.executable, *start, "doctor", "--json", "--target", NOBODY],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "SPECSCHED_RUN_DIR": str(root)},
    )
    assert done.returncode in {0, 1}, done.stderr
    return Doctor.told(done.stdout, done.returncode)


# ===================== Run directory =====================


def test_a_sound_directory(doctor: Doctor) -> None:
    findings = doctor.examine()
    assert findings[Code.RUN_DIR]["severity"] == "ok"
    assert not any(code.startswith("run-dir.") for code in findings)


def test_a_missing_directory_is_not_made(doctor: Doctor) -> None:
    for folder in ("schedulers", "executors", "."):
        (doctor.root / folder).rmdir()
    doctor.finds(Code.RUN_DIR_MISSING, "note")
    assert not doctor.root.exists()


@pytest.mark.parametrize("folder", [".", "schedulers", "executors"])
def test_a_directory_that_others_can_write(doctor: Doctor, folder: str) -> None:
    place = (doctor.root / folder).resolve()
    place.chmod(0o770)
    found = doctor.finds(Code.RUN_DIR_MODE, "error")
    assert found["remedy"] == f"chmod 700 {place}"
    subprocess.run(found["remedy"].split(), check=True)
    assert Code.RUN_DIR_MODE not in doctor.examine()


def test_something_else_in_the_place_of_a_folder(doctor: Doctor, tmp_path: Path) -> None:
    (doctor.root / "schedulers").rmdir()
    (doctor.root / "schedulers").symlink_to(tmp_path)
    found = doctor.finds(Code.RUN_DIR_TYPE, "error")
    subprocess.run(found["remedy"].removeprefix("remove it: ").split(), check=True)
    assert Code.RUN_DIR_TYPE not in doctor.examine()


def test_a_file_in_the_place_of_the_directory(doctor: Doctor) -> None:
    for folder in ("schedulers", "executors", "."):
        (doctor.root / folder).rmdir()
    doctor.root.write_text("")
    assert str(doctor.root) in doctor.finds(Code.RUN_DIR_TYPE, "error")["what"]


@needs_root
def test_a_directory_of_another_user(doctor: Doctor) -> None:
    os.chown(doctor.root, ALONE, -1)
    assert str(ALONE) in doctor.finds(Code.RUN_DIR_OWNER, "error")["what"]


@needs_root
def test_a_directory_on_a_read_only_file_system(root: Path) -> None:
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    findings = in_process(["unshare", "--mount", "sh", "-c", mount, str(root)], root)
    assert findings[Code.RUN_DIR_READ_ONLY]["severity"] == "error"


def test_a_directory_whose_sockets_would_have_too_long_names(doctor: Doctor) -> None:
    deep = doctor.root / ("x" * 90)
    found = doctor.finds(Code.RUN_DIR_TOO_LONG, "error", "--run-dir", str(deep))
    assert "at most 107" in found["what"]


# ===================== Sockets =====================


def test_a_socket_that_a_killed_scheduler_left(doctor: Doctor) -> None:
    path = doctor.root / "schedulers" / "blue.sock"
    listen(path).close()
    found = doctor.finds(Code.SOCKET_STALE, "warning")
    assert "specsched scheduler --name blue" in found["remedy"]
    subprocess.run(found["remedy"].partition("or: ")[2].split(), check=True)
    assert Code.SOCKET_STALE not in doctor.examine()


def test_a_socket_that_a_killed_executor_left(doctor: Doctor) -> None:
    folder = doctor.root / "executors" / "0123"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(folder / "handoff.sock"))
    (folder / "handoff.sock").chmod(0o600)
    found = doctor.finds(Code.SOCKET_STALE, "note")
    subprocess.run(found["remedy"].split(), check=True)
    assert Code.SOCKET_STALE not in doctor.examine()


def test_an_executor_is_seen_and_not_disturbed(doctor: Doctor) -> None:
    folder = doctor.root / "executors" / "0123"
    folder.mkdir(mode=0o700)
    server = HandoffServer(folder / "handoff.sock")
    with capture_logs() as logs, contextlib.closing(server):
        found = doctor.finds(Code.SOCKET, "ok")
    assert "executors/0123/handoff.sock" in found["what"]
    assert logs == []


def test_a_file_in_the_place_of_a_socket(doctor: Doctor) -> None:
    (doctor.root / "schedulers" / "blue.sock").write_text("")
    doctor.finds(Code.SOCKET_TYPE, "error")


def test_a_socket_that_others_could_use(doctor: Doctor) -> None:
    path = doctor.root / "schedulers" / "blue.sock"
    with listen(path, mode=0o666):
        found = doctor.finds(Code.SOCKET_MODE, "warning", "--timeout", "0.3")
        subprocess.run(found["remedy"].split(), check=True)
        assert Code.SOCKET_MODE not in doctor.examine("--timeout", "0.3")


@needs_root
def test_a_socket_of_another_user(doctor: Doctor) -> None:
    path = doctor.root / "schedulers" / "blue.sock"
    with listen(path):
        os.chown(path, ALONE, -1)
        doctor.finds(Code.SOCKET_OWNER, "error", "--timeout", "0.3")


# ===================== Processes =====================


class SpeakingScheduler(FakeScheduler):
    """Speaks the protocol of this release unless told otherwise."""

    protocol = PROTOCOL_RANGE.to_message()
    features = FEATURES
    cost_disturbed = False
    policy_failures: scheduler_pb2.PolicyFailures | None = None

    def GetStatus(self, request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        answer = super().GetStatus(request, context)
        answer.protocol.CopyFrom(self.protocol)
        answer.attachments[0].features.extend(self.features)
        answer.attachments[0].cost_disturbed = self.cost_disturbed
        if self.policy_failures is not None:
            answer.attachments[0].policy_failures.CopyFrom(self.policy_failures)
        return answer


@pytest.fixture
def scheduler(start_scheduler: Callable[..., FakeScheduler], doctor: Doctor) -> SpeakingScheduler:
    """A scheduler called `blue`."""
    started = start_scheduler("blue", SpeakingScheduler())
    (doctor.root / "schedulers" / "blue.sock").chmod(0o600)
    return started  # type: ignore[return-value]


@contextlib.contextmanager
def executor(doctor: Doctor, engine: FakeEngine | None = None, **attached: Any) -> Iterator[str]:
    """An executor attached to `blue`, or to nobody where `attached` is empty; its address."""

    def schedulers() -> executor_pb2.ListSchedulersResponse:
        target = f"unix:{doctor.root}/schedulers/blue.sock"
        one = executor_pb2.AttachedScheduler(name="blue", target=target, **attached)
        return executor_pb2.ListSchedulersResponse(schedulers=[one] if attached else [])

    with serving_in_thread(engine or FakeEngine(), schedulers=schedulers) as target:
        yield target


SHARED: dict[str, Any] = {"transport": scheduler_pb2.TRANSPORT_SHARED_MEMORY, "active": True}


def test_a_sound_pair(doctor: Doctor, scheduler: SpeakingScheduler) -> None:
    engine = FakeEngine()
    engine.stats = lambda: FakeStats(num_fallback_steps={})  # type: ignore[method-assign]
    with executor(doctor, engine, **SHARED) as target:
        findings = doctor.examine("--target", target)
    told = {code for code, each in findings.items() if each["severity"] == "ok"}
    assert {Code.EXECUTOR, Code.SCHEDULER, Code.PROTOCOL, Code.PLANS, Code.SOCKET} <= told
    assert {Code.RUN_DIR, Code.MEMORY, Code.HUGE_PAGES, Code.CLOCK} <= told
    assert {each["severity"] for each in findings.values()} <= {"ok", "note"}


def test_nobody_serves(doctor: Doctor) -> None:
    findings = doctor.examine()
    assert findings[Code.EXECUTOR_UNREACHABLE]["severity"] == "warning"
    assert findings[Code.SCHEDULER_NONE]["severity"] == "warning"


def test_an_executor_that_starts_is_not_missed(doctor: Doctor, root: Path) -> None:
    with marked_as_starting(RunDir.open(root), NOBODY):
        findings = doctor.examine()
    assert findings[Code.EXECUTOR_STARTING]["severity"] == "note"
    assert f"will serve at {NOBODY}" in findings[Code.EXECUTOR_STARTING]["what"]
    assert Code.EXECUTOR_UNREACHABLE not in findings


async def test_an_executor_that_does_not_serve(doctor: Doctor) -> None:
    async with serving(FakeEngine()) as gateway:
        await gateway.set_serving("it is shutting down")
        address = f"127.0.0.1:{gateway.port}"
        arguments = (Code.EXECUTOR_NOT_SERVING, "error", "--target", address)
        found = await asyncio.to_thread(doctor.finds, *arguments)
    assert "it is shutting down" in found["what"]


def test_steps_without_a_plan(doctor: Doctor, scheduler: SpeakingScheduler) -> None:
    with executor(doctor, **SHARED) as target:  # 190 planned, 10 late
        found = doctor.finds(Code.PLANS_LATE, "warning", "--target", target)
    assert found["what"].startswith("95.0% of 200 steps")
    assert "10 late" in found["what"]


def test_too_few_steps_to_judge(doctor: Doctor, scheduler: SpeakingScheduler) -> None:
    engine = FakeEngine()
    late = FakeStats(num_planned_steps=0, num_fallback_steps={"late": 10})
    engine.stats = lambda: late  # type: ignore[method-assign]
    with executor(doctor, engine, **SHARED) as target:
        found = doctor.finds(Code.PLANS, "note", "--target", target)
    assert found["what"].startswith("0 of 10 steps with drafts so far had a plan in time")
    assert "after 100 steps" in found["remedy"]


FAILURES = scheduler_pb2.PolicyFailures(
    num_requests=7,
    policy=plan_pb2.PolicySpec(name="throughput"),
    error="policy throughput raised KeyError: 1 (a.py:3)",
)


@pytest.mark.parametrize("told_by", ["executor", "scheduler"])
def test_a_policy_that_fails(
    doctor: Doctor, scheduler: SpeakingScheduler, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    told: dict[str, Any] = {}
    if told_by == "scheduler":
        monkeypatch.setattr(SpeakingScheduler, "policy_failures", FAILURES)
    else:
        told = {"policy": FAILURES.policy, "policy_failures": FAILURES}
    with executor(doctor, **SHARED, **told) as target:
        findings = doctor.examine("--target", target)
    found = findings[Code.POLICY_FAILS]
    assert found["severity"] == "error"
    assert "policy throughput fails, and its steps count as late; 7 policy errors" in found["what"]
    assert FAILURES.error in found["what"]
    assert list(findings).index(Code.POLICY_FAILS) < list(findings).index(Code.PLANS_LATE)
    assert "mend the policy first" in findings[Code.PLANS_LATE]["remedy"]


def test_a_policy_that_failed_and_was_replaced(
    doctor: Doctor, scheduler: SpeakingScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpeakingScheduler, "policy_failures", FAILURES)
    scheduler.policy = plan_pb2.PolicySpec(name="off")
    assert Code.POLICY_FAILS not in doctor.examine()


def test_a_scheduler_that_listens_and_says_nothing(doctor: Doctor) -> None:
    with listen(doctor.root / "schedulers" / "blue.sock"):
        found = doctor.finds(Code.SCHEDULER_SILENT, "error", "--timeout", "0.3")
    assert "blue" in found["what"]


def test_a_scheduler_that_still_compiles(doctor: Doctor, scheduler: SpeakingScheduler) -> None:
    scheduler.health.set("", HealthCheckResponse.NOT_SERVING)
    with executor(doctor) as target:
        findings = doctor.examine("--target", target)
    assert findings[Code.SCHEDULER_NOT_SERVING]["severity"] == "warning"
    assert Code.SCHEDULER_NOT_ATTACHED not in findings  # nothing strange about it


def test_a_scheduler_and_an_executor_that_did_not_meet(
    doctor: Doctor, scheduler: SpeakingScheduler
) -> None:
    with executor(doctor) as target:
        found = doctor.finds(Code.SCHEDULER_NOT_ATTACHED, "error", "--target", target)
    assert "--run-dir" in found["remedy"]


@pytest.mark.parametrize(("low", "high"), [(3, 4), (0, 0)])
def test_releases_too_far_apart(
    doctor: Doctor, scheduler: SpeakingScheduler, low: int, high: int
) -> None:
    scheduler.protocol = scheduler_pb2.ProtocolRange(min_version=low, max_version=high)
    found = doctor.finds(Code.PROTOCOL_RANGE, "error")
    assert f"{low}..{high}" in found["what"]
    assert str(PROTOCOL_RANGE) in found["what"]


def test_a_peer_without_a_feature(doctor: Doctor, scheduler: SpeakingScheduler) -> None:
    scheduler.features = FEATURES[:1]
    assert "learned_state" in doctor.finds(Code.PROTOCOL_FEATURES, "warning")["what"]


def test_an_executor_that_measured_on_a_busy_machine(
    doctor: Doctor, scheduler: SpeakingScheduler
) -> None:
    assert Code.COST_DISTURBED not in doctor.examine()
    scheduler.cost_disturbed = True
    found = doctor.finds(Code.COST_DISTURBED, "warning")
    assert "executor-1" in found["what"]
    assert "restart" in found["remedy"]


def test_steps_that_could_not_go_through_shared_memory(
    doctor: Doctor, scheduler: SpeakingScheduler
) -> None:
    inline = {"transport": scheduler_pb2.TRANSPORT_INLINE, "transport_reason": "no hand-over"}
    with executor(doctor, **inline) as target:
        found = doctor.finds(Code.TRANSPORT_INLINE, "warning", "--target", target)
    assert "no hand-over" in found["what"]


# ===================== Shared memory ======================


def test_files_may_not_become_as_large_as_a_region(root: Path) -> None:
    findings = in_process(["sh", "-c", 'ulimit -f 64; exec "$@"', "limited"], root)
    assert findings[Code.MEMORY_SIZE]["severity"] == "error"
    assert "ulimit -f" in findings[Code.MEMORY_SIZE]["remedy"]


@pytest.mark.parametrize("call", ["memfd_create", "future_write"])
def test_a_kernel_or_a_profile_that_does_not_seal(root: Path, call: str) -> None:
    findings = in_process([], root, "tests.clients.doctor.refused_calls", call)
    assert findings[Code.MEMORY_SEALS]["severity"] == "error"
    assert "--transport inline" in findings[Code.MEMORY_SEALS]["remedy"]


# ===================== Huge pages =====================


def test_huge_pages_for_all(doctor: Doctor) -> None:
    assert doctor.finds(Code.HUGE_PAGES, "ok")["what"].endswith("(always)")


def test_huge_pages_for_nobody(doctor: Doctor, mode_file: Path) -> None:
    mode_file.write_text("always madvise [never]\n")
    found = doctor.finds(Code.HUGE_PAGES_NEVER, "warning")
    assert f"echo madvise > {mode_file}" in found["remedy"]


def test_huge_pages_for_those_who_ask(mode_file: Path) -> None:
    mode_file.write_text("always [madvise] never\n")
    assert check_huge_pages(mode_file, lambda: True).code is Code.HUGE_PAGES
    found = check_huge_pages(mode_file, lambda: False)
    assert (found.code, found.severity) == (Code.HUGE_PAGES_NOT_ASKED_FOR, "warning")
    assert f"echo always > {mode_file}" in found.remedy


@pytest.mark.parametrize("content", [None, "", "always madvise never"])
def test_a_kernel_that_says_nothing_of_huge_pages(
    doctor: Doctor, mode_file: Path, content: str | None
) -> None:
    mode_file.unlink() if content is None else mode_file.write_text(content)
    doctor.finds(Code.HUGE_PAGES_UNKNOWN, "note")


def test_huge_pages_are_no_matter_beside_a_gpu(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "gpu_nodes", lambda: ["nvidia0"])
    assert Code.HUGE_PAGES not in doctor.examine()


# ===================== Clocks =====================

LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o600)
listener.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listening_process(path: Path, *prefix: str) -> Iterator[None]:
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", LISTENER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "listening\n"
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


@needs_root
def test_processes_with_clocks_of_their_own(doctor: Doctor) -> None:
    folder = doctor.root / "schedulers"
    with (
        listening_process(folder / "here.sock"),
        listening_process(
            folder / "there.sock", "unshare", "--time", "--fork", "--monotonic", "100000"
        ),
    ):
        found = doctor.finds(Code.CLOCK_NAMESPACE, "error", "--timeout", "0.3")
    assert "here.sock" in found["what"]
    assert "there.sock" in found["what"]


def test_a_clock_that_went_back(doctor: Doctor) -> None:
    path = doctor.root / "schedulers" / "blue.sock"
    with listen(path):
        later = path.stat().st_mtime + 86_400
        os.utime(path, (later, later))
        found = doctor.finds(Code.CLOCK_FUTURE, "warning", "--timeout", "0.3")
    assert "blue.sock" in found["what"]


# ===================== GPU =====================


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Has the check ask a module of this source instead of the executor's."""

    def use(source: str) -> None:
        (tmp_path / "pretended_probe.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        point = EntryPoint("gpu", "pretended_probe", "specsched.checks")
        monkeypatch.setattr(gpu_check, "entry_points", lambda group: [point])

    return use


def test_a_gpu_that_this_torch_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is built without CUDA here, or there is no GPU: the node is all there is."""
    monkeypatch.undo()
    (tmp_path / "nvidia0").touch()
    (found,) = gpu_check.check_gpu(tmp_path)
    if found.code is Code.GPU:
        pytest.skip("a GPU can be seen here")
    assert (found.code, found.severity) == (Code.GPU_UNSEEN, "error")
    assert "nvidia0" in found.what
    (found,) = gpu_check.check_gpu(tmp_path / "nothing")
    assert (found.code, found.severity) == (Code.GPU, "ok")


def test_a_driver_that_takes_torch_down_with_it(
    doctor: Doctor, probe: Callable[[str], None]
) -> None:
    probe("import os; os.abort()")
    found = doctor.finds(Code.GPU_UNUSABLE, "error")
    assert "status -6" in found["what"]


def test_a_gpu_that_is_too_old(doctor: Doctor, probe: Callable[[str], None]) -> None:
    probe(
        "import json, torch\n"
        "from specsched_executor.gpu_facts import GpuFacts\n"
        "gpu = GpuFacts('Tesla T4', (7, 5), True)\n"
        "print(json.dumps(dict(torch='2', cuda='12', gpu=gpu.name, refusal=gpu.refusal)))"
    )
    found = doctor.finds(Code.GPU_UNUSABLE, "warning")
    assert found["what"] == ("Tesla T4: compute capability 7.5 is too old; accepted: 8.0 or newer")


def test_an_environment_without_torch(doctor: Doctor) -> None:
    doctor.finds(Code.GPU_NO_TORCH, "note")


# ===================== All of them =====================


def test_every_code_is_found_by_a_test_here() -> None:
    source, _, _ = Path(__file__).read_text().partition("# ===================== All of them")
    assert [code for code in Code if f"Code.{code.name}" not in source] == []


def test_what_people_read(run: Run, doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.root.chmod(0o777)
    monkeypatch.setenv("COLUMNS", "40")  # no line depends on it
    code, out, err = run("doctor", "--target", NOBODY)
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert f"        -> chmod 700 {doctor.root}" in lines
    assert "ok      memory: 2.2 MiB can be shared, and sealed against peers" in lines
    told = "1 error, 2 warnings; no scheduler and no executor listens in the run directory"
    assert lines[-1] == told
    assert "\x1b[" not in out
