"""An executor's transport and a planner attached to it through the real hand-over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from specsched_executor.transport.shared_memory import SharedMemoryTransport
from specsched_protocol.plan import PlanRequest, StepDecision
from specsched_protocol.run_dir import RunDir
from specsched_protocol.shm import RegionShape
from specsched_protocol.v1 import scheduler_pb2
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.planner import Planner, PlannerConfig, PolicySelection, attach_regions

MAX_REQUESTS = 8
K = 4
FLAT = CostModel(verify={1: [1.0], 8: [1.0], 64: [1.0]}, capture_limit=64)
STEEP = CostModel(verify={n: [float(n * n)] for n in range(1, 65)}, capture_limit=64)
THROUGHPUT = PolicySelection(policy_id=1, code=PolicyCode.THROUGHPUT)
OFF = PolicySelection(policy_id=2, code=PolicyCode.OFF)
TIMEOUT_S = 120.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`; a test fails here rather than hang."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


class Rig:
    """One executor, one planner."""

    def __init__(self, directory: Path) -> None:
        shape = RegionShape(MAX_REQUESTS, K, num_report_slots=4)
        self.transport = SharedMemoryTransport(RunDir.open(directory / "run"), shape)
        self.planners: list[Planner] = []

    def hello(self) -> scheduler_pb2.Hello:
        offer = self.transport.open_lane()
        return scheduler_pb2.Hello(
            boot_id=self.transport.boot_id,
            model=scheduler_pb2.ModelFacts(max_requests=MAX_REQUESTS, max_draft_tokens=K),
            shared_memory=offer.shared_memory,
            lane=offer.lane,
            epoch=offer.epoch,
        )

    def attach(
        self,
        policy: PolicySelection = THROUGHPUT,
        cost_model: CostModel = FLAT,
        config: PlannerConfig | None = None,
    ) -> Planner:
        """Attach a planner, start it and let its decisions count."""
        hello = self.hello()
        planner = Planner(attach_regions(hello), policy, cost_model, config)
        self.planners.append(planner)
        planner.start()
        self.transport.lane_ready(hello.lane)
        self.transport.activate(hello.lane)
        return planner

    def plan(self, request: PlanRequest, rows: object = None) -> StepDecision:
        """Publish and wait for the decision, as no engine would."""
        planner = self.planners[-1]
        before = planner.counters().num_decisions
        self.transport.publish(rows, request)  # type: ignore[arg-type]
        wait_until(lambda: planner.counters().num_decisions > before)
        decision = self.transport.read(request.step_id)
        assert isinstance(decision, StepDecision), decision
        return decision

    def close(self) -> None:
        for planner in self.planners:
            planner.stop()
        self.transport.close()
