"""What a stream costs beside shared memory: to a decision, and to the engine's thread.

Two real processes over loopback TCP or a Unix socket; the executor's process is the bench.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specsched_executor.attach import (
    AttachConfig,
    AttachManager,
    ExecutorFacts,
    SchedulerEndpoint,
)
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.inline import pack_request
from specsched_protocol.plan import StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape, plan_arrays
from specsched_protocol.shm.layout import executor_layout
from specsched_protocol.tcp import TcpAddress
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles
from tests.bench.test_bench_transport import step, time_us
from tests.integration.processes import SchedulerProcess, start_scheduler, wait_until
from tests.protos.builders import make_report

pytestmark = pytest.mark.bench

K = 7
NUM_STEPS = 500
TRANSPORTS = ("none", "shared_memory", "inline")


@contextmanager
def attached(
    directory: Path, scheduler: SchedulerProcess, kind: str, num_requests: int
) -> Iterator[SharedMemoryTransport]:
    """An executor's transport with one scheduler attached by `kind`, or with none."""
    run_dir = RunDir.open(directory / f"{kind[0]}{num_requests}")
    transport = SharedMemoryTransport(run_dir, RegionShape(num_requests, K))
    facts = ExecutorFacts(
        boot_id=transport.boot_id,
        name="bench",
        version="0",
        model=pb.ModelFacts(name="bench", max_requests=num_requests, max_draft_tokens=K),
        capture_sizes=(),
        cost=plan_pb2.CostModel(
            verify=[plan_pb2.VerifyCost(tokens=8 * n, ms=[1.0 + 0.05 * n]) for n in range(1, 65)],
            capture_limit=512,
        ),
        current_step_id=lambda: 0,
    )
    port = scheduler.events("listening")[0]["tcp_port"]
    endpoint = (
        SchedulerEndpoint.of_address(TcpAddress("127.0.0.1", port), None)
        if kind == "inline"
        else SchedulerEndpoint.of_socket(scheduler.socket_path)
    )
    config = AttachConfig(endpoints=(endpoint,), shares_memory=kind == "shared_memory")
    manager = AttachManager(run_dir, transport, facts, config)
    try:
        if kind != "none":
            manager.start()
            wait_until(lambda: bool(manager.attachments()))
            (info,) = manager.attachments()
            assert info.transport == kind
        yield transport
    finally:
        if kind != "none":
            manager.stop()
        transport.close()


def latencies(transport: SharedMemoryTransport, num_requests: int, pause_ms: float) -> Any:
    """us from the call of publish to the decision in the lane; the engine sleeps meanwhile."""
    rng = np.random.default_rng(0)
    latency_us, publish_us = [], []
    for step_id in range(2, NUM_STEPS + 2):
        rows, request = step(step_id, num_requests, K, rng)
        begun_ns = time.monotonic_ns()
        transport.publish(rows, request)
        publish_us.append((time.monotonic_ns() - begun_ns) / 1e3)
        time.sleep(pause_ms / 1e3)
        outcome = transport.read(step_id)
        if isinstance(outcome, StepDecision):
            latency_us.append((outcome.decided_ns - begun_ns) / 1e3)
        transport.report(make_report(step_id, num_rows=num_requests))
    return {
        "on_time_share": len(latency_us) / NUM_STEPS,
        **{f"publish_us_{name}": value for name, value in percentiles(publish_us).items()},
        **{
            f"publish_to_decision_us_{name}": value
            for name, value in percentiles(latency_us or [float("nan")]).items()
        },
    }


def engine_ms(transport: SharedMemoryTransport, num_requests: int) -> list[float]:
    """Durations of steps that are half interpreter, half numpy without the GIL; none waits."""
    rng = np.random.default_rng(0)
    matrix = rng.random((256, 256))
    durations = []
    for step_id in range(2, NUM_STEPS // 5 + 2):
        rows, request = step(step_id, num_requests, K, rng)
        begun = time.perf_counter()
        transport.publish(rows, request)
        sum(range(50_000))
        matrix @ matrix
        transport.read(step_id)
        transport.report(make_report(step_id, num_rows=num_requests))
        durations.append(1e3 * (time.perf_counter() - begun))
    return durations


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    run_dir = tmp_path_factory.mktemp("run")
    with start_scheduler(run_dir, "--listen", "127.0.0.1:0") as process:
        yield process


def test_bench_inline_latency(
    tmp_path: Path, scheduler: SchedulerProcess, record_bench: RecordBench
) -> None:
    results = []
    for num_requests, pause_ms in ((8, 5.0), (256, 5.0)):
        for kind in TRANSPORTS[1:]:
            with attached(tmp_path, scheduler, kind, num_requests) as transport:
                latencies(transport, num_requests, pause_ms)  # caches, page faults
                case = {"transport": kind, "num_requests": num_requests, "pause_ms": pause_ms}
                results.append(case | latencies(transport, num_requests, pause_ms))
    record_bench("inline_latency", results, num_steps=NUM_STEPS, max_draft_tokens=K)


def test_bench_inline_engine_thread(
    tmp_path: Path, scheduler: SchedulerProcess, record_bench: RecordBench
) -> None:
    """The same steps with nobody attached, shared memory and the stream, in alternating rounds."""
    results = []
    for num_requests in (8, 256):
        durations: dict[str, list[float]] = {kind: [] for kind in TRANSPORTS}
        for round_number in range(3):
            for kind in TRANSPORTS:
                directory = tmp_path / str(round_number)
                directory.mkdir(exist_ok=True)
                with attached(directory, scheduler, kind, num_requests) as transport:
                    durations[kind] += engine_ms(transport, num_requests)
        base = float(np.median(durations["none"]))
        for kind, values in durations.items():
            ratio = float(np.median(values)) / base
            case = {"transport": kind, "num_requests": num_requests, "step_ratio_p50": ratio}
            results.append(case | {f"step_ms_{k}": v for k, v in percentiles(values).items()})
    record_bench("inline_engine_thread", results, max_draft_tokens=K)


@pytest.mark.parametrize("num_requests", [8, 256])
def test_bench_inline_packing(record_bench: RecordBench, num_requests: int) -> None:
    """Making and serialising the message of a step: paid on the stream's thread."""
    layout = executor_layout(RegionShape(num_requests, K))
    request = plan_arrays.new_request_arrays(layout)
    request.fixed[plan_arrays.NUM_REQUESTS] = num_requests
    gathered = plan_arrays.new_gathered_confidences(layout)
    times = time_us(lambda: pack_request(request, gathered).SerializeToString())
    size = len(pack_request(request, gathered).SerializeToString())
    case = {"num_requests": num_requests, "max_draft_tokens": K, "unit": "us"}
    record_bench(f"inline_packing_{num_requests}", [case | {"message_bytes": size} | times])
