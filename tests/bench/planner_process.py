"""The scheduler's process of the transport bench: one planner, driven over standard input."""

from __future__ import annotations

import sys

from specsched_protocol.v1 import scheduler_pb2
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.planner import (
    Planner,
    PlannerConfig,
    PolicySelection,
    attach_regions,
    warm_up,
)


def main() -> None:
    """Arguments: the Hello in hex, spin_us. Says "ready", then plans until its input ends."""
    hello = scheduler_pb2.Hello.FromString(bytes.fromhex(sys.argv[1]))
    warm_up()
    cost_model = CostModel(
        verify={8 * n: [1.0 + 0.05 * n] for n in range(1, 65)}, capture_limit=512
    )
    planner = Planner(
        attach_regions(hello),
        PolicySelection(0, PolicyCode.THROUGHPUT),
        cost_model,
        PlannerConfig(spin_us=float(sys.argv[2])),
    )
    planner.start()
    print("ready", flush=True)
    sys.stdin.read()
    planner.stop()
    counters = planner.counters()
    print(counters.num_decisions, counters.plan_us_p50, counters.plan_us_p99, flush=True)


if __name__ == "__main__":
    main()
