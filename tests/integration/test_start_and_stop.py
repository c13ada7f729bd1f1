"""Real processes that start late, stop, fail and share a machine. The model is tiny and random."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_client import (
    Client,
    Completion,
    ConnectionFailedError,
    Sampling,
    SchedulerClient,
    ServerError,
)
from specsched_protocol.start_marks import executors_starting

from tests.integration.processes import (
    ExecutorProcess,
    ManagedProcess,
    SchedulerProcess,
    start_executor,
    start_scheduler,
    wait_until,
)
from tests.integration.tiny_checkpoint import MAX_CONTEXT_TOKENS, write_tiny_checkpoint

pytestmark = pytest.mark.slow

LATE_S = 10.0
"""By then the pauses between two tries have grown to the longest."""
PROMPT = "one two three one two three one two"
GREEDY = Sampling(temperature=0.0, max_tokens=60, ignore_eos=True)
LONG = Sampling(temperature=0.0, max_tokens=1500, ignore_eos=True)
"""Goes on for seconds."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    return ("--model", str(folder), "--max-context-tokens", str(MAX_CONTEXT_TOKENS))


@pytest.fixture(scope="module")
def expected(model: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[int, ...]:
    """What it says with neither drafts nor schedulers."""
    run_dir = tmp_path_factory.mktemp("plain")
    options = (*model, "--drafter", "none")
    with start_executor(run_dir, *options, profile=None) as executor:
        return ask(executor).token_ids


def ask(executor: ExecutorProcess) -> Completion:
    with Client(executor.target) as client:
        return client.generate(PROMPT, GREEDY, timeout_s=60)


def num_planned(executor: ExecutorProcess) -> int:
    with Client(executor.target) as client:
        return client.step_counters().counters.num_planned_steps


def leave_stale_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


# ===================== Late, or never =====================


def test_sidecar_that_comes_late_is_attached_and_one_that_never_comes_is_not_missed(
    tmp_path: Path, model: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """A dead socket of its name and a file lie there all the time, so retries have backed off."""
    run_dir = tmp_path / "run"
    leave_stale_socket(run_dir / "schedulers" / "default.sock")
    (run_dir / "schedulers" / "note.sock").write_text("no socket")
    run_dir.chmod(0o700)
    with start_executor(run_dir, *model) as executor:
        late = time.monotonic() + LATE_S
        while time.monotonic() < late:
            assert ask(executor).token_ids == expected
            time.sleep(0.5)
        assert num_planned(executor) == 0
        assert len(executor.events("cannot attach")) == 1  # said once, not every five seconds
        with start_scheduler(run_dir):
            executor.wait_until_attached()
            wait_until(lambda: ask(executor).token_ids == expected and num_planned(executor) > 0)
        assert executor.terminate() == 0


# ===================== The end =====================


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_lets_requests_finish_and_takes_no_new_ones(
    tmp_path: Path, model: tuple[str, ...], number: signal.Signals
) -> None:
    with (
        start_executor(tmp_path, *model, "--drain-timeout-s", "120") as executor,
        Client(executor.target) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(client.generate, PROMPT, LONG, timeout_s=120)
        wait_until(lambda: client.loads().loads[0].num_running_reqs == 1)
        executor.popen.send_signal(number)
        executor.wait_for_event("draining")
        wait_until(lambda: not client.health().healthy)
        with pytest.raises(ConnectionFailedError, match="it is shutting down"):
            client.generate(PROMPT, GREEDY)
        completion = running.result()
        assert (completion.finish_reason, completion.num_output_tokens) == (
            "length",
            LONG.max_tokens,
        )
        assert executor.terminate() == 0


def test_at_the_deadline_requests_end_with_what_they_have(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    with (
        start_executor(tmp_path, *model, "--drain-timeout-s", "0.3") as executor,
        Client(executor.target) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        # Four run and two wait for a slot.
        asked = [pool.submit(client.generate, PROMPT, LONG, timeout_s=120) for _ in range(6)]
        wait_until(lambda: client.loads().loads[0].num_waiting_reqs == 2)
        assert executor.terminate() == 0
        ends = [each.result() for each in asked]
        assert {end.finish_reason for end in ends} == {"abort"}
        assert sorted(end.num_output_tokens > 0 for end in ends) == [False] * 2 + [True] * 4


def _told_to_end(process: ManagedProcess) -> None:
    assert process.terminate() == 0
    assert process.events("ending")
    assert process.events("stopped")
    assert not process.events("serving")
    assert "Traceback" not in process.log


@pytest.fixture
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start now compile, which takes far longer than what is waited for an end."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))


@pytest.mark.usefixtures("nothing_compiled")
def test_a_scheduler_told_to_end_while_it_compiles_ends(tmp_path: Path) -> None:
    with SchedulerProcess(tmp_path / "run") as scheduler:
        scheduler.wait_for_event("listening")
        _told_to_end(scheduler)
        assert not scheduler.socket_path.exists()


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("profile", ["full", "off"])
def test_an_executor_told_to_end_while_it_compiles_ends(
    tmp_path: Path, model: tuple[str, ...], profile: str
) -> None:
    """To measure the step cost, or else to connect and to prove its readiness."""
    with ExecutorProcess(tmp_path / "run", *model, "--profile", profile) as executor:
        executor.wait_for_event("model loaded")
        _told_to_end(executor)
        assert list((tmp_path / "run" / "executors").iterdir()) == []


# ===================== Readiness =====================


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_serving(target: str) -> bool:
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def test_whenever_it_says_serving_requests_are_served(
    tmp_path: Path, model: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """Nothing was measured, so only the proof at the start has run the model before."""
    port = _free_port()
    options = (*model, "--profile", "off", "--port", str(port))
    target, run_dir = f"127.0.0.1:{port}", tmp_path / "run"
    with ExecutorProcess(run_dir, *options) as process:
        wait_until(lambda: [each.target for each in executors_starting(run_dir)] == [target])
        wait_until(lambda: _is_serving(target), timeout_s=120, interval_s=0.002)
        process.port = port
        assert ask(process).token_ids == expected
        assert process.events("ready")
        assert executors_starting(run_dir) == ()
        assert process.terminate() == 0
    assert not _is_serving(target)


FAULTY = """
import sys, typer
from specsched_executor.commands import executor
from specsched_executor.engine.step_loop import StepLoop

num_good = int(sys.argv.pop(1))
stats = StepLoop.stats

def counting(self):
    if stats(self).num_output_tokens > num_good:
        raise RuntimeError("cannot count")
    return stats(self)

StepLoop.stats = counting
typer.run(executor)
"""
"""An executor whose loop itself fails after so many output tokens; the first request has 8."""


def _faulty(num_good: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FAULTY, str(num_good), "--log-format", "json", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_an_engine_that_cannot_serve_never_says_that_it_does(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    port = _free_port()
    run_dir = str(tmp_path / "run")
    process = _faulty(0, *model, "--run-dir", run_dir, "--profile", "off", "--port", str(port))
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "a first request failed: the engine failed" in log
    assert '"event": "serving"' not in log


def test_an_engine_that_fails_ends_the_process_for_its_supervisor_to_see(
    tmp_path: Path, model: tuple[str, ...]
) -> None:
    port = _free_port()
    run_dir = str(tmp_path / "run")
    process = _faulty(20, *model, "--run-dir", run_dir, "--profile", "off", "--port", str(port))
    try:
        wait_until(lambda: _is_serving(f"127.0.0.1:{port}"), timeout_s=120)
        with Client(f"127.0.0.1:{port}") as client, pytest.raises(ServerError, match="engine"):
            client.generate(PROMPT, GREEDY)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 1, log
    finally:
        process.kill()
        process.communicate()


# ===================== Neighbours =====================


def _attached(scheduler: SchedulerProcess) -> dict[str, int]:
    """Executor name -> decisions made for it."""
    with SchedulerClient(scheduler.target) as client:
        attachments = client.status().attachments
    return {each.executor_name: each.counters.num_decisions for each in attachments}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as processes:
        yield processes


def test_executors_and_schedulers_of_one_machine_do_not_mix(
    tmp_path: Path, model: tuple[str, ...], expected: tuple[int, ...], stack: ExitStack
) -> None:
    """Two executors and two schedulers in one run directory, one of each in another."""
    here, there = tmp_path / "here", tmp_path / "there"
    a = stack.enter_context(start_scheduler(here, policy="fixed(7)", name="a"))
    b = stack.enter_context(start_scheduler(here, policy="off", name="b"))
    c = stack.enter_context(start_scheduler(there, policy="off", name="a"))
    first, second = (stack.enter_context(start_executor(here, *model)) for _ in range(2))
    third = stack.enter_context(start_executor(there, *model))
    for executor, count in ((first, 2), (second, 2), (third, 1)):
        executor.wait_until_attached(count=count)
    names = {executor: f"executor-{executor.pid}" for executor in (first, second, third)}
    assert set(_attached(a)) == set(_attached(b)) == {names[first], names[second]}
    assert set(_attached(c)) == {names[third]}

    # Only the one that is asked gets decisions, of both schedulers that it is attached to.
    before = {scheduler: _attached(scheduler) for scheduler in (a, b, c)}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [first] * 4))
    assert [answer.token_ids for answer in answers] == [expected] * 4
    for scheduler in (a, b):
        now = _attached(scheduler)
        assert now[names[first]] > before[scheduler][names[first]]
        assert now[names[second]] == before[scheduler][names[second]]
    assert _attached(c) == before[c]

    # A scheduler that goes takes nobody else's along.
    a.kill()
    first.wait_for_event("lost scheduler")
    second.wait_for_event("lost scheduler")
    assert third.events("lost scheduler") == []
    assert ask(second).token_ids == ask(third).token_ids == expected
    assert set(_attached(b)) == {names[first], names[second]}
    first.kill()
    wait_until(lambda: set(_attached(b)) == {names[second]})
    assert ask(second).token_ids == expected


def test_an_executor_replaces_one_that_was_killed_and_leaves_a_living_ones_port_alone(
    tmp_path: Path, model: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    with start_scheduler(tmp_path), start_executor(tmp_path, *model) as killed:
        killed.wait_until_attached()
        killed.kill()
        assert list(tmp_path.glob("executors/*/handoff.sock"))  # what it left behind
        with start_executor(tmp_path, *model, "--port", str(killed.port)) as living:
            living.wait_until_attached()
            assert ask(living).token_ids == expected
            port = str(living.port)
            options = (*model, "--profile", "off", "--port", port)
            with ExecutorProcess(tmp_path, *options) as refused:
                assert refused.popen.wait(60) == 2
                reason = refused.wait_for_event("cannot start")["reason"]
                assert f"127.0.0.1:{port}" in reason
                assert "Traceback" not in refused.log
            assert ask(living).token_ids == expected


def test_two_that_start_at_once_on_one_name_are_one(tmp_path: Path) -> None:
    """One serves, the other says who does; neither removes the other's socket."""
    leave_stale_socket(tmp_path / "schedulers" / "default.sock")
    pair = [SchedulerProcess(tmp_path) for _ in range(2)]
    try:
        wait_until(lambda: any(each.popen.poll() is not None for each in pair), timeout_s=60)
        loser = next(each for each in pair if each.popen.poll() is not None)
        winner = next(each for each in pair if each is not loser)
        winner.wait_until_serving()
        assert loser.popen.returncode == 2
        assert f"pid {winner.pid}" in loser.wait_for_event("cannot start")["reason"]
        assert winner.socket_path.is_socket()
        assert winner.terminate() == 0
    finally:
        for each in pair:
            each.kill()
