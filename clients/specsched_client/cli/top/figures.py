"""Figures of an interval, from the readings at both its ends. Pure."""

from __future__ import annotations

from typing import Any

from specsched_protocol.enum_words import enum_word
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import executor_pb2, plan_pb2, scheduler_pb2

from specsched_client.cli._lane_views import role_text, transport_text
from specsched_client.cli._status_report import ExecutorReport, Report, SchedulerReport
from specsched_client.cli.top.feed import Reading
from specsched_client.cli.top.frame import (
    DecisionFrame,
    ExecutorFrame,
    Frame,
    LaneFrame,
    StepFrame,
)

__all__ = ["make_frame"]


def make_frame(now: Reading, before: Reading | None) -> Frame:
    """The state `now`, and what happened since `before`."""
    report = now.report
    executor: ExecutorFrame | str
    if isinstance(report.executor, str):
        executor = report.executor
    else:
        executor = _executor(report.executor, _steps(now, before))
    lanes = [_lane(name, each, now, before) for name, each in report.schedulers.items()]
    lanes += _remote_lanes(report)
    return Frame(report.target, executor, tuple(sorted(lanes, key=_place)))


def _place(lane: LaneFrame) -> tuple[bool, str]:
    return lane.role != "active", lane.name


# ===================== Executor =====================


def _executor(report: ExecutorReport, steps: StepFrame | None) -> ExecutorFrame:
    load, counters = report.load, report.counters
    return ExecutorFrame(
        state="serving" if report.health.healthy else report.health.message,
        model=report.model.served_model_name,
        uptime_s=report.server.uptime_seconds,
        num_running=load.num_running_reqs,
        max_running=load.max_running_requests,
        num_waiting=load.num_waiting_reqs,
        kv_cache_share=load.token_usage,
        num_preemptions=counters.num_preemptions if counters else 0,
        num_failed_requests=counters.num_failed_requests if counters else 0,
        steps=steps,
    )


def _steps(now: Reading, before: Reading | None) -> StepFrame | None:
    ends = [_counters(each) for each in (before, now) if each is not None]
    if before is None or len(ends) < 2 or ends[0] is None or ends[1] is None:
        return None
    old, new = ends[0], ends[1]
    if new.num_steps < old.num_steps:  # another process
        old = executor_pb2.StepCounters()
    seconds = max(now.at_s - before.at_s, 1e-9)
    num_steps = new.num_steps - old.num_steps
    fallbacks = {
        reason: count - old.num_fallback_steps.get(reason, 0)
        for reason, count in sorted(new.num_fallback_steps.items())
        if count > old.num_fallback_steps.get(reason, 0)
    }
    planned = new.num_planned_steps - old.num_planned_steps
    verified = new.num_verified_tokens - old.num_verified_tokens
    accepted = new.num_accepted_tokens - old.num_accepted_tokens
    output = new.num_output_tokens - old.num_output_tokens
    return StepFrame(
        seconds=seconds,
        steps_per_second=num_steps / seconds,
        output_tokens_per_second=output / seconds,
        tokens_per_step=_share(output, num_steps),
        planned_share=_share(planned, planned + sum(fallbacks.values())),
        fallbacks=fallbacks,
        drafted=_share(new.num_drafted_tokens - old.num_drafted_tokens, num_steps),
        scheduled=_share(new.num_scheduled_tokens - old.num_scheduled_tokens, num_steps),
        verified=_share(verified, num_steps),
        accepted=_share(accepted, num_steps),
        accepted_share=_share(accepted, verified),
    )


def _counters(reading: Reading | None) -> executor_pb2.StepCounters | None:
    executor = reading.report.executor if reading else ""
    return None if isinstance(executor, str) else executor.counters


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# ===================== Schedulers =====================


def _attached(report: Report) -> list[executor_pb2.AttachedScheduler]:
    executor = report.executor
    if isinstance(executor, str) or executor.schedulers is None:
        return []
    return list(executor.schedulers.schedulers)


def _remote_lanes(report: Report) -> list[LaneFrame]:
    """Schedulers that the executor knows and the run directory does not."""
    return [
        LaneFrame(each.name, **_lane_facts(each))
        for each in _attached(report)
        if each.name not in report.schedulers
    ]


def _lane(
    name: str, told: SchedulerReport | str, now: Reading, before: Reading | None
) -> LaneFrame:
    attached = next((each for each in _attached(now.report) if each.name == name), None)
    facts = _lane_facts(attached) if attached else {"role": "not attached"}
    if isinstance(told, str):
        if attached is None:
            facts["role"] = "unreachable"
        return LaneFrame(name, reason=told, **facts)
    status = told.status
    facts |= {"version": status.version, "policy": policy_text(status.policy)}
    if status.attachments:
        counters = status.attachments[0].counters
        if attached is None:  # the executor cannot say: the scheduler was told, if it was
            role = status.attachments[0].lane_status.role
            facts["role"] = role_text(role) if role else "attached"
        facts |= {"plan_us_p50": counters.plan_us_p50, "plan_us_p99": counters.plan_us_p99}
    return LaneFrame(
        name,
        **facts,
        decisions_per_second=_decision_rate(name, status, now, before),
        decisions=_decisions(now.decisions.get(name, ())),
    )


def _lane_facts(attached: executor_pb2.AttachedScheduler) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "role": "active" if attached.active else role_text(attached.role),
        "transport": transport_text(attached.transport),
        "version": attached.version,
        "policy": policy_text(attached.policy),
    }
    comparison = attached.comparison
    if not attached.active and comparison.num_steps:
        facts["same_share"] = comparison.num_same_decisions / comparison.num_steps
        facts["regret_tokens"] = comparison.mean_regret_tokens
    return facts


def _decision_rate(
    name: str, status: scheduler_pb2.GetStatusResponse, now: Reading, before: Reading | None
) -> float | None:
    earlier = before.report.schedulers.get(name) if before else None
    if before is None or earlier is None or isinstance(earlier, str):
        return None
    num_new = _num_decisions(status) - _num_decisions(earlier.status)
    return max(0, num_new) / max(now.at_s - before.at_s, 1e-9)


def _num_decisions(status: scheduler_pb2.GetStatusResponse) -> int:
    return sum(each.counters.num_decisions for each in status.attachments)


def _decisions(
    watched: tuple[scheduler_pb2.WatchDecisionsResponse, ...],
) -> DecisionFrame | None:
    if not watched:
        return None
    newest = watched[-1]
    decision = newest.decision
    has_length = decision.HasField("next_draft_tokens")
    return DecisionFrame(
        step_id=decision.step_id,
        num_requests=newest.num_requests,
        num_drafts=newest.num_draft_tokens,
        next_draft_tokens=decision.next_draft_tokens if has_length else None,
        expected_tokens=decision.expected_tokens,
        model_state=enum_word(plan_pb2.ModelState.DESCRIPTOR, decision.model_state),
        flags=tuple(enum_word(plan_pb2.DecisionFlag.DESCRIPTOR, flag) for flag in decision.flags),
        budgets=tuple(each.decision.budget for each in watched),
        drafts=tuple(each.num_draft_tokens for each in watched),
        expected_ms=tuple(each.decision.expected_ms for each in watched),
    )
