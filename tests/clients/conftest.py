"""An executor that answers at once, served on loopback, and the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer
from specsched_client.cli import main
from specsched_protocol.v1 import plan_pb2, scheduler_pb2, scheduler_pb2_grpc

from tests.executor.gateway.fakes import AnsweringEngine, serving_in_thread

ANSWER = (3, 4, 5, 6)
"""hello world good bye"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def engine() -> AnsweringEngine:
    return AnsweringEngine(lambda _: ANSWER)


@pytest.fixture
def target(engine: AnsweringEngine) -> Iterator[str]:
    with serving_in_thread(engine) as address:
        yield address


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("SPECSCHED_RUN_DIR", str(tmp_path / "run"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specsched", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Remembers its policy; refuses one called "unknown"."""

    def __init__(self) -> None:
        self.policy = plan_pb2.PolicySpec(name="throughput")
        self.health: HealthServicer | None = None
        self.role = scheduler_pb2.LANE_ROLE_UNSPECIFIED

    def WatchDecisions(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "a fake decides nothing")

    def GetStatus(self, request: Any, context: Any) -> scheduler_pb2.GetStatusResponse:
        counters = scheduler_pb2.PlannerCounters(num_decisions=41, plan_us_p50=7)
        attachment = scheduler_pb2.AttachmentStatus(
            executor_name="executor-1",
            lane=2,
            transport=scheduler_pb2.TRANSPORT_SHARED_MEMORY,
            counters=counters,
        )
        if self.role != scheduler_pb2.LANE_ROLE_UNSPECIFIED:
            attachment.lane_status.role = self.role
        return scheduler_pb2.GetStatusResponse(
            version="1.2.3",
            policy=self.policy,
            policies=["throughput", "fixed"],
            attachments=[attachment],
        )

    def SetPolicy(self, request: Any, context: Any) -> scheduler_pb2.SetPolicyResponse:
        if request.policy.name == "unknown":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "policy 'unknown' is unknown")
        previous, self.policy = self.policy, request.policy
        return scheduler_pb2.SetPolicyResponse(policy=self.policy, previous_policy=previous)


@pytest.fixture
def start_scheduler(tmp_path: Path) -> Iterator[Callable[..., FakeScheduler]]:
    servers: list[grpc.Server] = []
    folder = tmp_path / "run" / "schedulers"

    def start(name: str, servicer: FakeScheduler | None = None) -> FakeScheduler:
        folder.mkdir(parents=True, exist_ok=True)
        servicer = servicer or FakeScheduler()
        server = grpc.server(futures.ThreadPoolExecutor(2))
        servicer.health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer.health, server)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server)
        server.add_insecure_port(f"unix:{folder / name}.sock")
        server.start()
        servers.append(server)
        return servicer

    yield start
    for server in servers:
        server.stop(grace=None).wait()
