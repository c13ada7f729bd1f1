"""An executor that is about to measure lets schedulers of its run directory compile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specsched_executor.serve import compiling, progress
from specsched_executor.serve.compiling import let_schedulers_compile
from specsched_protocol.run_dir import RunDir
from structlog.testing import capture_logs
from structlog.typing import EventDict

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING
NEVER_S = 3600.0
DEADLINE_S = 120.0


class Compiles(health_pb2_grpc.HealthServicer):
    """Serves once it was asked so many times."""

    def __init__(self, num_times: float) -> None:
        self._num_times = num_times
        self.num_asked = 0

    def stop_compiling(self) -> None:
        self._num_times = 0

    def Check(self, request, context) -> health_pb2.HealthCheckResponse:
        self.num_asked += 1
        status = SERVING if self.num_asked > self._num_times else NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.open(tmp_path / "run")


@pytest.fixture
def starts(run_dir: RunDir) -> Iterator[Callable[[str, float], Compiles]]:
    """Starts a scheduler that compiles."""
    with ExitStack() as servers:

        def start(name: str, num_times: float) -> Compiles:
            server = grpc.server(ThreadPoolExecutor(1))
            health = Compiles(num_times)
            health_pb2_grpc.add_HealthServicer_to_server(health, server)
            server.add_insecure_port(f"unix:{run_dir.scheduler_socket(name)}")
            server.start()
            servers.callback(lambda: server.stop(None).wait())
            return health

        yield start


@pytest.fixture(autouse=True)
def _asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_POLL_S", 0.01)


def test_all_of_them_are_waited_for(run_dir: RunDir, starts) -> None:
    blue, green = starts("blue", 2), starts("green", 3)
    with capture_logs() as logs:
        let_schedulers_compile(run_dir, NEVER_S)
    assert green.num_asked == 4
    assert blue.num_asked == 4
    (told,) = logs
    assert (told["event"], told["schedulers"]) == ("letting a scheduler compile", ["blue", "green"])


def test_those_that_serve_or_do_not_answer_are_no_reason_to_wait(
    run_dir: RunDir, starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_ANSWER_TIMEOUT_S", 0.2)
    serving = starts("serving", 0)
    with capture_logs() as logs, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(run_dir.scheduler_socket("silent")))
        silent.listen()
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(run_dir.scheduler_socket("killed")))
        let_schedulers_compile(run_dir, NEVER_S)
    assert logs == []
    assert serving.num_asked <= 1  # 0.2 s may be short for it too


def test_the_wait_ends_where_the_compiling_does_not(run_dir: RunDir, starts) -> None:
    stuck = starts("stuck", float("inf"))
    with capture_logs() as logs:
        let_schedulers_compile(run_dir, max_wait_s=1.0)
    assert (logs[-1]["log_level"], logs[-1]["schedulers"]) == ("warning", ["stuck"])
    assert "--compile-wait-s" in logs[-1]["hint"]
    assert stuck.num_asked > 0


def is_told(logs: list[EventDict]) -> bool:
    return any(log["event"] == "still letting a scheduler compile" for log in logs)


def test_who_waits_is_told_for_how_long_it_already_is(
    run_dir: RunDir, starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_TELL_AGAIN_S", 0.01)
    compiles = starts("slow", float("inf"))
    with capture_logs() as logs:
        waiting = threading.Thread(target=let_schedulers_compile, args=(run_dir, NEVER_S))
        waiting.start()
        deadline = time.monotonic() + DEADLINE_S
        while not is_told(logs) and time.monotonic() < deadline:
            waiting.join(0.01)
        compiles.stop_compiling()
        waiting.join()
    assert is_told(logs)
    assert logs[-1]["log_level"] == "info"
