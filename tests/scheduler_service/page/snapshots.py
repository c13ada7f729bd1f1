"""Snapshots as a test wants them: of one executor that is followed, six requests with drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specsched_scheduler.telemetry.decisions import Second
from specsched_scheduler.telemetry.outcomes import PositionOutcome
from specsched_scheduler.telemetry.snapshot import (
    Choice,
    ConfidenceSnapshot,
    CostSnapshot,
    DecisionSnapshot,
    ExecutorSnapshot,
    HistogramSnapshot,
    LearningSnapshot,
    NewestDecision,
    PlanOutcomesSnapshot,
    Snapshot,
    StepCost,
    StepTimeSnapshot,
)

NOW_S = 1_000_000.5

NEWEST = NewestDecision(
    step_id=7,
    num_requests=6,
    num_draft_tokens=18,
    budget=10,
    next_draft_tokens=3,
    expected_tokens=13.5,
    expected_ms=12.0,
    plan_us=60.0,
    is_flat=False,
)
CHOICE = Choice(StepCost(6, 10.0), StepCost(16, 12.0), StepCost(24, 20.0))


def second(*, ago_s: int = 1, **changes: Any) -> Second:
    """A hundred steps of 10 ms, as predicted, that would have taken 15 ms each without drafts."""
    values = {
        "num_decisions": 100,
        "num_judged_steps": 100,
        "predicted_ms": 1000.0,
        "measured_ms": 1000.0,
        "plain_ms": 1500.0,
    }
    return Second(int(NOW_S) - ago_s, **(values | changes))


def executor(*, decisions: Any = None, confidences: Any = None, **changes: Any) -> ExecutorSnapshot:
    """One that is well. decisions, confidences: changes of those parts."""
    it = ExecutorSnapshot(
        slot=0,
        boot_id="ab",
        name="executor-1",
        model="m",
        drafter="dspark",
        transport="shared_memory",
        max_draft_tokens=3,
        role="active",
        active_scheduler="v1",
        decisions=DecisionSnapshot(
            num_decisions=1000,
            num_missed=0,
            num_invalid=0,
            num_policy_errors=0,
            num_torn_reads=0,
            num_requests=6000,
            num_draft_tokens=18000,
            budget=10000,
            latency_s=HistogramSnapshot((0.001, 0.01), (1000, 0, 0), 0.1),
            newest=NEWEST,
            seconds=(second(),),
            sizes=(),
        ),
        confidences=ConfidenceSnapshot(0, 0, 0, 5000, 3000.0, 2990, (position(0.01),)),
        cost=CostSnapshot("ok", False, 64, (1, 32, 64), (9.0, 20.0, 30.0), (9.0, 20.0, 30.0)),
        choice=CHOICE,
        step_times=StepTimeSnapshot(1000, 10.0, 10.0, 15.0, HistogramSnapshot((), (), 0.0), None),
        plan_outcomes=PlanOutcomesSnapshot(990, {"late": 10, "no_scheduler": 500}),
        learning=LearningSnapshot(1000, 0, 0, 0, 0, 0),
        lanes=(),
    )
    parts = {
        "decisions": replace(it.decisions, **(decisions or {})),
        "confidences": replace(it.confidences, **(confidences or {})),
    }
    return replace(it, **(parts | changes))


def position(error: float | None, *, position: int = 0) -> PositionOutcome:
    return PositionOutcome(position, 2000.0, 0.6, 0.6, error, ())


def snapshot(*executors: ExecutorSnapshot, policy: str = "throughput") -> Snapshot:
    return Snapshot(NOW_S, "v1", "1.0", policy, len(executors), False, executors)
