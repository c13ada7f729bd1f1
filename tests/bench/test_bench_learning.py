"""CPU time that a scheduler takes for a step, by thread and by part: planning, and learning.

A planner, its learner and what telemetry looks at, attached to an executor that only publishes and
reports, at the pace of real steps. Between two steps it writes over 4 MiB, as a model on the same
cores would. Times are CPU times, which other processes inflate less than those on the wall.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import ConfidenceRows, PlanRequest, StepDecision, StepReport
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.learning.learner import ExecutorKind, Learner
from specsched_scheduler.learning.warm import warm_up_learning
from specsched_scheduler.planner import Planner, PolicySelection, attach_regions, warm_up
from specsched_scheduler.service.learning import LearningThread
from specsched_scheduler.telemetry import AttachmentTelemetry
from specsched_scheduler.telemetry.warm import warm_up_telemetry

K = 7
CASES = ((16, 60.0), (16, 3.0), (256, 4.0))
"""Requests and ms from step to step."""
NUM_WARM_UP_STEPS, NUM_STEPS = 100, 400
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048)
COST = CostModel(
    verify={size: [20.0 + 0.3 * size] for size in SIZES},
    capture_limit=2048,
    draft={size: [2.0 + 0.1 * size] for size in (1, 16, 256)},
    short_drafts={3: {size: [1.0 + 0.05 * size] for size in (1, 16, 256)}},
)


class Attached:
    """A scheduler's threads and an executor that runs nothing. parts_ns: CPU time by part."""

    def __init__(self, directory: Path, num_requests: int) -> None:
        self.parts_ns: dict[str, int] = defaultdict(int)
        self._num_requests = num_requests
        self._rng = np.random.default_rng(0)
        self._caches = np.zeros(4 << 20, dtype=np.uint8)
        shape = RegionShape(num_requests, K)
        self._transport = SharedMemoryTransport(RunDir.open(directory / "run"), shape)
        offer = self._transport.open_lane()
        model = pb.ModelFacts(max_requests=num_requests, max_draft_tokens=K)
        hello = pb.Hello(
            boot_id=self._transport.boot_id,
            model=model,
            shared_memory=offer.shared_memory,
            lane=offer.lane,
            epoch=offer.epoch,
        )
        policy = PolicySelection(1, PolicyCode.THROUGHPUT)
        self.planner = Planner(attach_regions(hello), policy, COST)
        self.learner = Learner(ExecutorKind("model", "drafter", K), COST)
        self.learning = LearningThread(self.planner, self.learner)
        self.telemetry = AttachmentTelemetry(self.planner, self.learner)
        self.telemetry.is_followed = True
        self.learning.on_followed = self.telemetry.follow
        self._time_parts()
        self.planner.start()
        self._transport.lane_ready(offer.lane)
        self._transport.activate(offer.lane)
        self.learning.start()

    def close(self) -> None:
        self.learning.stop()
        self.planner.stop()
        self._transport.close()

    def threads_ns(self) -> dict[str, int]:
        """CPU time so far."""
        threads = {"planner": self.planner._thread, "learner": self.learning._thread}
        return {name: _cpu_ns(thread.native_id) for name, thread in threads.items()}

    def run(self, steps: range, interval_ms: float) -> None:
        """Steps at an even pace."""
        due = time.monotonic()
        confidence = self._confidence()
        for step in steps:
            verified, confidence = confidence, self._confidence()
            self._publish(step, confidence)
            self._report(step - 1, verified)
            self._caches.fill(step % 256)
            due += interval_ms / 1e3
            time.sleep(max(0.0, due - time.monotonic()))

    def _confidence(self) -> np.ndarray:
        return self._rng.beta(4.0, 2.0, (self._num_requests, K)).astype(np.float32)

    def _publish(self, step: int, confidence: np.ndarray) -> None:
        num, slots = self._num_requests, np.arange(self._num_requests, dtype=np.uint32)
        full = np.full(num, K, dtype=np.uint32)
        # A slot's request is another one every 100 steps.
        generation = ((step + slots) // 100 + 1).astype(np.uint32)
        rows = ConfidenceRows(step - 2, slots, generation, full, confidence)
        request = PlanRequest(
            step_id=step,
            source_step_id=step - 2,
            num_other_tokens=num,
            num_prefill_tokens=0,
            max_budget=num * K,
            slot_id=slots,
            generation=generation,
            num_draft_tokens=full,
            samples=np.ones(num, dtype=np.bool_),
            weight=np.ones(num, dtype=np.float32),
            context_tokens=np.full(num, 200, dtype=np.uint32),
            is_greedy=slots % 2 == 0,
        )
        self._transport.publish(rows, request)

    def _report(self, step: int, confidence: np.ndarray) -> None:
        num, slots = self._num_requests, np.arange(self._num_requests, dtype=np.uint32)
        decision = self._transport.read(step)
        budget = decision.budget if isinstance(decision, StepDecision) else 0
        verified = np.full(num, budget // num) + (np.arange(num) < budget % num)
        held = np.cumprod(self._rng.random((num, K)) < confidence, axis=1).sum(axis=1)
        num_rows = num + budget
        report = StepReport(
            step_id=step,
            num_tokens=num_rows,
            padded_num_tokens=num_rows,
            num_prefill_tokens=0,
            num_sampling=num,
            asked_draft_tokens=K,
            context_tokens=200 * num,
            draft_ms=1.2,
            verify_ms=(20.0 + 0.3 * num_rows) * float(np.exp(0.03 * self._rng.standard_normal())),
            slot_id=slots,
            generation=((step + 1 + slots) // 100 + 1).astype(np.uint32),
            num_verified=verified.astype(np.uint32),
            num_accepted=np.minimum(held, verified).astype(np.uint32),
            teaches=np.ones(num, dtype=np.bool_),
        )
        self._transport.report(report)

    def _time_parts(self) -> None:
        learner = self.learner
        timed = (
            ("read", self.planner, "drain_reports"),
            ("read", self.planner, "drain_confidences"),
            ("pair", learner.pairing, "take"),
            ("draft_length", learner.draft_length, "follow"),
            ("calibration", learner.calibrator, "observe"),
            ("calibration", learner.calibrator, "update"),
            ("cost", learner.corrector, "observe"),
            ("cost", learner.corrector, "update"),
            ("cost", learner, "_price"),
            ("telemetry", self.learning, "on_followed"),
        )
        for part, owner, name in timed:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.parts_ns[part] += time.thread_time_ns() - began

        return run


def _cpu_ns(thread_id: int | None) -> int:
    schedstat = Path(f"/proc/self/task/{thread_id}/schedstat")
    return int(schedstat.read_text(encoding="ascii").split()[0])


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()
    warm_up_telemetry(*warm_up_learning())


@pytest.fixture
def attached(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attached]:
    attached = Attached(tmp_path, request.param)
    yield attached
    attached.close()


RESULTS: list[dict[str, Any]] = []


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("attached", "interval_ms"), CASES, indirect=["attached"])
def test_cpu_time_of_a_step(
    attached: Attached, interval_ms: float, request: pytest.FixtureRequest, record_bench: Any
) -> None:
    num_requests = request.node.callspec.params["attached"]
    attached.run(range(2, 2 + NUM_WARM_UP_STEPS), interval_ms)
    attached.parts_ns.clear()
    before, began_s = attached.threads_ns(), time.monotonic()
    attached.run(range(2 + NUM_WARM_UP_STEPS, 2 + NUM_WARM_UP_STEPS + NUM_STEPS), interval_ms)
    taken_s = time.monotonic() - began_s
    us = {
        name: (after - before[name]) / 1e3 / NUM_STEPS
        for name, after in attached.threads_ns().items()
    }
    assert attached.planner.counters().num_decisions > 0
    RESULTS.append(
        {
            "num_requests": num_requests,
            "interval_ms": interval_ms,
            "step_us": us,
            "learner_parts_us": {
                part: ns / 1e3 / NUM_STEPS for part, ns in sorted(attached.parts_ns.items())
            },
            "num_lost_reports": attached.planner.counters().num_lost_reports,
            "share_of_a_core": sum(us.values()) * NUM_STEPS / 1e6 / taken_s,
        }
    )
    if len(RESULTS) == len(CASES):
        _show(RESULTS)
        record_bench("scheduler_cpu", RESULTS, max_draft_tokens=K, num_steps=NUM_STEPS)


def _show(results: list[dict[str, Any]]) -> None:
    parts = sorted({part for each in results for part in each["learner_parts_us"]})
    table = Table("requests", "every, ms", "planner, us", "learner, us", *parts, "of a core")
    for each in results:
        table.add_row(
            str(each["num_requests"]),
            f"{each['interval_ms']:g}",
            *(f"{each['step_us'][name]:.0f}" for name in ("planner", "learner")),
            *(f"{each['learner_parts_us'].get(part, 0.0):.0f}" for part in parts),
            f"{each['share_of_a_core']:.2%}",
        )
    Console(width=130).print(table)
