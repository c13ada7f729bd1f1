"""From publishing a plan request to its decision, between two processes, and what it costs.

The executor's process sleeps between publishing and reading, as an engine waits for its device.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import ConfidenceRows, PlanRequest, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import scheduler_pb2

from tests.bench.conftest import RecordBench
from tests.bench.recording import percentiles
from tests.protos.builders import make_report, make_request, make_rows

pytestmark = pytest.mark.bench

NUM_STEPS = 1000
CASES = [
    # requests, k, spin in the planner, pause between steps
    (8, 7, 2000.0, 1.0),
    (8, 7, 20.0, 1.0),
    (8, 7, 0.0, 1.0),
    (8, 7, 20.0, 50.0),
    (256, 7, 2000.0, 1.0),
    (256, 7, 20.0, 5.0),
]


@contextmanager
def attached(
    directory: Path, num_requests: int, k: int, spin_us: float
) -> Iterator[SharedMemoryTransport]:
    transport = SharedMemoryTransport(RunDir.open(directory / "run"), RegionShape(num_requests, k))
    offer = transport.open_lane()
    hello = scheduler_pb2.Hello(
        boot_id=transport.boot_id,
        model=scheduler_pb2.ModelFacts(max_requests=num_requests, max_draft_tokens=k),
        shared_memory=offer.shared_memory,
        lane=offer.lane,
        epoch=offer.epoch,
    )
    command = [sys.executable, "-m", "tests.bench.planner_process"]
    command += [hello.SerializeToString().hex(), str(spin_us)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as planner:
        assert planner.stdout is not None
        assert planner.stdin is not None
        assert planner.stdout.readline() == "ready\n"
        transport.lane_ready(offer.lane)
        transport.activate(offer.lane)
        try:
            yield transport
        finally:
            planner.stdin.close()
            planner.wait(timeout=30)
            transport.close()


def step(
    step_id: int, num_requests: int, k: int, rng: np.random.Generator
) -> tuple[ConfidenceRows, PlanRequest]:
    rows = make_rows(step_id - 2, num_rows=num_requests, max_draft_tokens=k)
    rows.confidence[:] = rng.random(rows.confidence.shape)
    return rows, make_request(step_id, num_rows=num_requests, num_draft_tokens=k)


def measure(
    transport: SharedMemoryTransport, num_requests: int, k: int, pause_ms: float
) -> dict[str, Any]:
    """us from the call of publish to the decision's own time stamp, and of the read afterwards."""
    rng = np.random.default_rng(0)
    num_steps = int(min(NUM_STEPS, 5000 / pause_ms))
    latency_us, read_us, num_on_time = [], [], 0
    for step_id in range(2, num_steps + 2):
        rows, request = step(step_id, num_requests, k, rng)
        begun_ns = time.monotonic_ns()
        transport.publish(rows, request)
        time.sleep(pause_ms / 1e3)
        reading_ns = time.monotonic_ns()
        outcome = transport.read(step_id)
        read_us.append((time.monotonic_ns() - reading_ns) / 1e3)
        if isinstance(outcome, StepDecision):
            num_on_time += 1
            latency_us.append((outcome.decided_ns - begun_ns) / 1e3)
    shares = {"on_time_share": num_on_time / num_steps, "read_us_p50": float(np.median(read_us))}
    return shares | {
        f"publish_to_decision_us_{name}": value for name, value in percentiles(latency_us).items()
    }


def test_bench_publish_to_decision(tmp_path: Path, record_bench: RecordBench) -> None:
    results = []
    for index, (num_requests, k, spin_us, pause_ms) in enumerate(CASES):
        directory = tmp_path / str(index)
        directory.mkdir()
        with attached(directory, num_requests, k, spin_us) as transport:
            measure(transport, num_requests, k, 1.0)  # caches, page faults
            case = {"num_requests": num_requests, "max_draft_tokens": k}
            case |= {"spin_us": spin_us, "pause_ms": pause_ms}
            results.append(case | measure(transport, num_requests, k, pause_ms))
    record_bench("transport_latency", results, num_steps=NUM_STEPS)


def time_us(call: Callable[[], object], num_calls: int = 2000) -> dict[str, float]:
    samples = []
    for _ in range(num_calls):
        begun = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - begun) / 1e3)
    return percentiles(samples)


@pytest.mark.parametrize("num_requests", [8, 256])
def test_bench_engine_side_calls(
    tmp_path: Path, record_bench: RecordBench, num_requests: int
) -> None:
    """What publish and report cost the engine's thread; no scheduler is attached."""
    k = 7
    transport = SharedMemoryTransport(RunDir.open(tmp_path / "run"), RegionShape(num_requests, k))
    rows, request = step(2, num_requests, k, np.random.default_rng(0))
    report = make_report(2, num_rows=num_requests)
    calls = {
        "publish": lambda: transport.publish(rows, request),
        "report": lambda: transport.report(report),
    }
    case = {"num_requests": num_requests, "max_draft_tokens": k, "unit": "us"}
    results = [case | {"call": name} | time_us(call) for name, call in calls.items()]
    transport.close()
    record_bench(f"transport_calls_{num_requests}", results)
