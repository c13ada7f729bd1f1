"""Fills the snapshot of one attachment."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from copy import copy

from specsched_protocol.enum_words import enum_word
from specsched_protocol.histogram import Histogram
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision._price import verify_ms_at
from specsched_scheduler.decision.codes import DecisionFlags
from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.decision.wire import policy_from_message
from specsched_scheduler.planner import RecentDecision

from . import snapshot as shot
from .attachment import AttachmentTelemetry
from .catalogue import LATENCY_BOUNDS_S
from .view import AttachmentView

__all__ = ["look_at"]


def look_at(view: AttachmentView) -> shot.ExecutorSnapshot:
    """From any thread; may wait for a fit."""
    hello, status = view.hello, view.status()
    lane = status.lane_status

    def read(telemetry: AttachmentTelemetry) -> shot.ExecutorSnapshot:
        return shot.ExecutorSnapshot(
            slot=view.slot,
            boot_id=hello.boot_id.hex(),
            name=hello.executor_name,
            model=hello.model.name,
            drafter=hello.model.drafter,
            transport=enum_word(pb.Transport.DESCRIPTOR, status.transport),
            max_draft_tokens=hello.model.max_draft_tokens,
            role=_role(lane.role),
            active_scheduler=lane.active_scheduler,
            decisions=_decisions(telemetry, status.counters, view.latencies()),
            confidences=_confidences(telemetry, status.counters),
            cost=cost,
            choice=_choice(view.table, telemetry.decisions.chosen),
            step_times=_step_times(telemetry),
            plan_outcomes=_plan_outcomes(status),
            learning=_learning(view, status.counters),
            lanes=tuple(map(_lane, lane.members)),
        )

    cost = _cost(view, status.model_state)
    return view.telemetry.look(read)


def _role(role: pb.LaneRole.ValueType) -> str:
    return enum_word(pb.LaneRole.DESCRIPTOR, role) if role else ""


def _lane(member: pb.LaneMember) -> shot.LaneSnapshot:
    return shot.LaneSnapshot(
        lane=member.lane,
        scheduler=member.scheduler_name,
        version=member.scheduler_version,
        policy=_policy_text(member.policy),
        role=_role(member.role),
    )


def _policy_text(policy: plan_pb2.PolicySpec) -> str:
    try:
        return str(policy_from_message(policy))
    except PolicyError:  # of another version, or a package that is not installed here
        return policy.name


def _histogram(histogram: Histogram) -> shot.HistogramSnapshot:
    return shot.HistogramSnapshot(histogram.bounds, tuple(histogram.counts), histogram.sum)


def _decisions(
    telemetry: AttachmentTelemetry,
    counters: pb.PlannerCounters,
    latencies: Iterable[tuple[float, int]],
) -> shot.DecisionSnapshot:
    log, latency = telemetry.decisions, Histogram(LATENCY_BOUNDS_S)
    for seconds, count in latencies:
        latency.observe(seconds, count)
    return shot.DecisionSnapshot(
        num_decisions=counters.num_decisions,
        num_missed=counters.num_missed_requests,
        num_invalid=counters.num_invalid_requests,
        num_policy_errors=telemetry.planner_counters().num_policy_errors,
        num_torn_reads=counters.num_torn_reads,
        num_requests=log.num_requests,
        num_draft_tokens=log.num_draft_tokens,
        budget=log.budget,
        latency_s=_histogram(latency),
        newest=None if log.newest is None else _newest(log.newest),
        seconds=tuple(map(copy, log.seconds)),
        sizes=tuple(copy(log.sizes[size]) for size in sorted(log.sizes)),
        chosen=None if log.chosen is None else _newest(log.chosen),
    )


def _newest(recent: RecentDecision) -> shot.NewestDecision:
    decision = recent.decision
    return shot.NewestDecision(
        step_id=decision.step_id,
        num_requests=recent.num_requests,
        num_draft_tokens=recent.num_draft_tokens,
        budget=min(decision.budget, recent.num_draft_tokens),
        next_draft_tokens=decision.next_draft_tokens,
        expected_tokens=decision.expected_tokens,
        expected_ms=decision.expected_ms,
        plan_us=recent.plan_us,
        is_flat=bool(decision.flags & DecisionFlags.FLAT),
    )


def _confidences(
    telemetry: AttachmentTelemetry, counters: pb.PlannerCounters
) -> shot.ConfidenceSnapshot:
    outcomes = telemetry.outcomes
    return shot.ConfidenceSnapshot(
        num_repaired=counters.num_repaired_confidences,
        num_missing_steps=telemetry.planner_counters().num_missing_confidences,
        num_frozen_steps=telemetry.freezing.num_steps,
        num_judged=outcomes.num_judged,
        num_expected=outcomes.num_expected,
        num_accepted=outcomes.num_accepted,
        positions=outcomes.positions(),
    )


def _cost(view: AttachmentView, state: plan_pb2.ModelState.ValueType) -> shot.CostSnapshot:
    table = view.table
    profile, is_corrected = view.learned_cost()
    sizes = tuple(sorted(profile.verify))
    return shot.CostSnapshot(
        model_state=enum_word(plan_pb2.ModelState.DESCRIPTOR, state),
        is_corrected=is_corrected,
        capture_limit=profile.capture_limit,
        sizes=sizes,
        ms=tuple(float(verify_ms_at(table, size)) for size in sizes),
        profiled_ms=tuple(statistics.median(profile.verify[size]) for size in sizes),
    )


def _choice(table: CostTable, recent: RecentDecision | None) -> shot.Choice | None:
    if recent is None or not table.has_model:
        return None
    newest = _newest(recent)

    def step(num_drafts: int) -> shot.StepCost:
        num_rows = newest.num_requests + num_drafts
        return shot.StepCost(num_rows, float(verify_ms_at(table, num_rows)))

    return shot.Choice(step(0), step(newest.budget), step(newest.num_draft_tokens))


def _step_times(telemetry: AttachmentTelemetry) -> shot.StepTimeSnapshot:
    steps = telemetry.steps
    return shot.StepTimeSnapshot(
        num_steps=steps.num_steps,
        predicted_s=steps.predicted_s,
        measured_s=steps.measured_s,
        plain_s=steps.plain_s,
        ratios=_histogram(steps.ratios),
        newest=steps.newest,
    )


def _plan_outcomes(status: pb.AttachmentStatus) -> shot.PlanOutcomesSnapshot | None:
    if not status.HasField("plan_outcomes"):
        return None
    told = status.plan_outcomes
    return shot.PlanOutcomesSnapshot(
        told.num_planned_steps, dict(sorted(told.num_fallback_steps.items()))
    )


def _learning(view: AttachmentView, counters: pb.PlannerCounters) -> shot.LearningSnapshot:
    return shot.LearningSnapshot(
        num_reports=counters.num_reports,
        num_lost_reports=counters.num_lost_reports,
        num_lost_confidences=view.num_lost_confidences,
        num_publications=view.num_publications,
        num_probes=view.num_probes,
        num_failures=view.num_learning_failures,
    )
