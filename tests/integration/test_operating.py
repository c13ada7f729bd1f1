"""What an operator types, against a real executor with two real schedulers under load."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from specsched_client import Client, Sampling
from specsched_client.cli._main import app
from typer.testing import CliRunner

from tests.integration.processes import (
    ExecutorProcess,
    SchedulerProcess,
    start_executor,
    wait_until,
)
from tests.integration.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.slow

SPECSCHED = str(Path(sys.executable).with_name("specsched"))
PAUSE_S = 0.1
PROMPT = "counting 1 2 3 4 counting 1 2 3"


@dataclass
class Pair:
    """An executor and its schedulers `blue`, which is followed, and `green`, which shadows."""

    run_dir: Path
    executor: ExecutorProcess

    def run(self, *arguments: str) -> tuple[int, str]:
        """The command line in this process: exit code and stdout."""
        result = CliRunner().invoke(app, [*arguments, *self.where(arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "\x1b" not in result.stdout  # it goes into a pipe
        return result.exit_code, result.stdout

    def json(self, *arguments: str) -> Any:
        code, out = self.run(*arguments, "--json")
        assert code == 0, out
        assert out.count("\n") == 1
        return json.loads(out)

    def where(self, arguments: tuple[str, ...]) -> list[str]:
        """Options that lead a command here."""
        target = ("--target", self.executor.target)
        run_dir = ("--run-dir", str(self.run_dir))
        options = {"lanes": target, "diff": target}.get(arguments[0], run_dir)
        both = arguments[0] in {"top", "status", "doctor"}
        return [*target, *run_dir] if both else list(options)


@pytest.fixture(scope="module")
def trace_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace")


class Collector(TraceServiceServicer):
    """Keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    servicer, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, trace_dir: Path, collector: tuple[Collector, str]
) -> Iterator[Pair]:
    run_dir = tmp_path_factory.mktemp("run")
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    trace = ("--trace-dir", str(trace_dir))
    with contextlib.ExitStack() as stack:
        blue = stack.enter_context(SchedulerProcess(run_dir, *trace, name="blue"))
        green = stack.enter_context(SchedulerProcess(run_dir, "--policy", "off", name="green"))
        options = ("--model", str(model), "--drafter", "ngram", "--otlp-endpoint", collector[1])
        executor = stack.enter_context(start_executor(run_dir, *options))
        for scheduler in (blue, green):
            scheduler.wait_until_serving()
        executor.wait_until_attached(count=2)
        pair = Pair(run_dir, executor)
        assert pair.run("promote", "blue")[0] == 0
        stack.enter_context(load(executor.target))
        wait_until(lambda: pair.json("diff")["shadows"]["green"]["num_steps"] not in {"0", 0})
        yield pair


@contextlib.contextmanager
def load(target: str) -> Iterator[None]:
    """Two clients that ask until the end, and pause for as long as an answer takes or longer."""
    stop = threading.Event()
    sampling = Sampling(temperature=0.0, max_tokens=64, ignore_eos=True)

    def ask() -> None:
        with Client(target) as client:
            while not stop.wait(PAUSE_S):
                client.generate(PROMPT, sampling, timeout_s=60)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def on_terminal(*arguments: str, until: Callable[[str], bool]) -> tuple[int, str]:
    """Run on a terminal until what was shown satisfies `until`, then press Ctrl-C."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [SPECSCHED, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    is_told = False
    with contextlib.suppress(OSError):  # how Linux tells that the other end has closed
        while piece := os.read(leader, 65536):
            shown += piece
            if not is_told and until(shown.decode(errors="replace")):
                process.send_signal(signal.SIGINT)
                is_told = True
    os.close(leader)
    return process.wait(30), shown.decode(errors="replace")


# ===================== top =====================


def frames_of_top(pair: Pair) -> list[dict[str, Any]]:
    code, out = pair.run("top", "--json", "--count", "2", "--interval", "0.5")
    frames = [json.loads(line) for line in out.splitlines()]
    assert (code, len(frames)) == (0, 2)
    return frames


def is_lively(frames: list[dict[str, Any]]) -> bool:
    """Whether the machine let steps be run and decisions be watched meanwhile."""
    lanes = frames[-1]["lanes"]
    watched = all(lane["decisions"] and len(lane["decisions"]["budgets"]) > 1 for lane in lanes)
    return watched and all(frame["executor"]["steps"]["steps_per_second"] > 0 for frame in frames)


def test_top_tells_what_happened_between_two_readings(pair: Pair) -> None:
    frames: list[dict[str, Any]] = []
    with Client(pair.executor.target) as client:
        for _ in range(20):
            before = client.step_counters().counters
            frames = frames_of_top(pair)
            after = client.step_counters().counters
            if is_lively(frames):
                break
    assert is_lively(frames)
    told = 0.0
    for frame in frames:
        executor = frame["executor"]
        assert executor["state"] == "serving"
        assert 0 <= executor["num_running"] <= executor["max_running"] == 4
        steps = executor["steps"]
        assert steps["accepted"] <= steps["verified"] <= steps["scheduled"]
        told += steps["steps_per_second"] * steps["seconds"]
    assert 0 < told <= after.num_steps - before.num_steps
    blue, green = frames[-1]["lanes"]
    assert (blue["name"], blue["role"], blue["policy"]) == ("blue", "active", "throughput")
    assert (green["name"], green["role"], green["policy"]) == ("green", "shadow", "off")
    assert blue["transport"] == "shared memory"
    assert blue["decisions_per_second"] > 0
    assert 0 < blue["plan_us_p50"] <= blue["plan_us_p99"]
    assert 0 <= green["same_share"] <= 1
    decisions = blue["decisions"]
    assert len(decisions["budgets"]) == len(decisions["drafts"])
    assert all(b <= d for b, d in zip(decisions["budgets"], decisions["drafts"], strict=True))
    assert set(green["decisions"]["budgets"]) == {0}
    assert decisions["step_id"] > 0


def test_top_on_a_terminal_redraws_until_ctrl_c(pair: Pair) -> None:
    where = pair.where(("top",))
    code, shown = on_terminal(
        "top", "--interval", "0.3", *where, until=lambda text: text.count("decisions of blue") >= 2
    )
    assert code == 0
    for fact in ("tokens/s", "accepted", "in time; fallbacks", "shared memory", "green", "shadow"):
        assert fact in shown
    assert "\x1b[?1049h" in shown  # a screen of its own,
    assert shown.endswith("\x1b[?25h\x1b[?1049l")  # which is left, the cursor shown again
    assert "Traceback" not in shown


def test_top_in_a_pipe_is_plain(pair: Pair) -> None:
    code, out = pair.run("top", "--count", "1", "--interval", "0.3")
    assert code == 0
    assert f"executor {pair.executor.target}" in out
    assert "\x1b" not in out
    assert not any(line.strip() == "" for line in out.splitlines()[1:4])


# ===================== The other commands =====================


def test_status_lanes_and_doctor_see_the_same(pair: Pair) -> None:
    status = pair.json("status")
    assert sorted(status["schedulers"]) == ["blue", "green"]
    lanes = {each["name"]: each for each in pair.json("lanes")["schedulers"]}
    assert lanes["blue"]["active"]
    assert not lanes["green"]["active"]
    code, out = pair.run("doctor", "--json", "--timeout", "20")
    findings = json.loads(out)["findings"]
    assert code == 0, findings
    told = {each["code"] for each in findings if each["severity"] == "ok"}
    assert {"run-dir", "socket", "executor", "scheduler", "protocol", "memory", "clock"} <= told
    # The processes are sound; a busy machine may have made plans late or measurements unsteady.
    bad = {each["code"] for each in findings if each["severity"] in {"warning", "error"}}
    assert bad <= {"plans.late", "cost.disturbed"}


def test_a_policy_is_set_and_told(pair: Pair) -> None:
    green = ("--scheduler", "green")
    assert pair.json("policy", "set", "fixed(2)", *green)["previous"] == "off"
    assert pair.json("policy", "get", *green)["policy"] == "fixed(k=2)"
    assert pair.run("policy", "set", "off", *green) == (0, "green: fixed(k=2) -> off\n")


def test_a_shadow_is_promoted_drained_and_the_first_one_is_back(pair: Pair) -> None:
    (change,) = pair.json("promote", "green")["executors"]
    assert (change["reply"]["previous_scheduler"], change["reply"]["done"]) == ("blue", True)
    (change,) = pair.json("drain", "green")["executors"]
    assert change["reply"]["active_scheduler"] == "blue"
    (green,) = (each for each in pair.json("lanes")["schedulers"] if each["name"] == "green")
    assert green["role"] == "LANE_ROLE_SHADOW"


@pytest.mark.parametrize("what", ["cost", "calibration"])
def test_what_was_learned_is_shown_told_and_drawn(pair: Pair, what: str, tmp_path: Path) -> None:
    blue = ("--scheduler", "blue")

    def has_learned() -> bool:
        (attachment,) = pair.json(what, "show", *blue)["attachments"]
        return any(int(each["num_drafts"]) for each in attachment["greedy"]["positions"])

    # A target of random weights is drafted for in vain, and a good policy drafts less and less.
    assert pair.run("policy", "set", "fixed(7)", *blue)[0] == 0
    wait_until(has_learned, timeout_s=60)
    assert pair.run("policy", "set", "throughput", *blue)[0] == 0
    code, out = pair.run(what, "show", *blue)
    assert code == 0
    assert "|" in out
    picture = tmp_path / "picture.png"
    assert pair.run(what, "show", *blue, "--plot", str(picture)) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_looked_into(pair: Pair, trace_dir: Path) -> None:
    """A file is whole once its policy changed, and there is one if steps came meanwhile."""

    def policies_with_steps() -> set[str]:
        for policy in ("fixed(7)", "throughput"):
            assert pair.run("policy", "set", policy, "--scheduler", "blue")[0] == 0
        if not any(trace_dir.glob("*.parquet")):
            return set()
        result = CliRunner().invoke(app, ["trace", "summary", str(trace_dir), "--json"])
        told = json.loads(result.stdout)
        assert told["steps"] > 0
        return set(told["policies"])

    wait_until(lambda: "throughput" in policies_with_steps(), timeout_s=60)
    result = CliRunner().invoke(app, ["trace", "head", str(trace_dir), "-n", "2"])
    assert len(result.stdout.splitlines()) == 3


def test_requests_are_spans_at_the_collector(pair: Pair, collector: tuple[Collector, str]) -> None:
    """Of a call that names its trace, in it; sent in batches, so some seconds later."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with grpc.insecure_channel(pair.executor.target) as channel:
        request = vllm_engine_pb2.GenerateRequest(
            request_id="traced",
            text=PROMPT,
            sampling_params=vllm_engine_pb2.SamplingParams(max_tokens=4, ignore_eos=True),
        )
        metadata = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),)
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        list(stub.Generate(request, metadata=metadata, timeout=60))
    spans = collector[0].spans

    def traced() -> list[Any]:
        return [span for span in spans if span.trace_id.hex() == trace_id]

    wait_until(lambda: bool(traced()), timeout_s=60)
    (span,) = traced()
    told = {each.key: each.value for each in span.attributes}
    assert told["gen_ai.request.model"].string_value == "tiny"
    assert told["gen_ai.request.id"].string_value == "traced"
    assert told["gen_ai.usage.output_tokens"].int_value == 4


def test_the_log_of_a_served_load_has_no_line_for_each_step(pair: Pair) -> None:
    """Comes last: thousands of steps have run by now."""
    with Client(pair.executor.target) as client:
        num_steps = client.step_counters().counters.num_steps
    lines = [json.loads(line) for line in pair.executor.log.splitlines()]
    assert num_steps > 200
    assert len(lines) < num_steps / 4
    assert not [line for line in lines if line["event"] == "step"]
    assert PROMPT not in pair.executor.log
