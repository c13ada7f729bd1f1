"""The processes that answer, and whether they work with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specsched_protocol.enum_words import enum_word
from specsched_protocol.v1 import executor_pb2, scheduler_pb2
from specsched_protocol.versions import FEATURES, PROTOCOL_RANGE, VersionRange

from specsched_client.cli._status_report import ExecutorReport, Report, SchedulerReport
from specsched_client.cli._status_views import start_text
from specsched_client.cli.doctor.findings import Code, Finding, Severity
from specsched_client.cli.doctor.policies import check_policies

__all__ = ["check_processes"]

_MIN_PLANNED_SHARE = 0.99
_MIN_STEPS = 100


def check_processes(report: Report, schedulers: Mapping[str, str]) -> list[Finding]:
    """What the answers of an executor and of `schedulers` (name -> target) say together."""
    found: list[Finding] = []
    executor = report.executor
    for each in report.starting:
        remedy = "wait: it loads, compiles and measures; its log says `serving`"
        found.append(Finding(Code.EXECUTOR_STARTING, Severity.NOTE, start_text(each), remedy))
    failing = list(check_policies(report))
    if not isinstance(executor, str):
        found += [*_check_serving(executor), *failing]
        found += _check_plans(executor, policy_fails=bool(failing))
    else:
        if not report.starting:
            remedy = "start it (specsched executor), or give its address by --target"
            found.append(Finding(Code.EXECUTOR_UNREACHABLE, Severity.WARNING, executor, remedy))
        found += failing
    if not schedulers:
        what = "no scheduler is in the run directory: executors decide by their --fallback"
        remedy = "start one: specsched scheduler"
        found.append(Finding(Code.SCHEDULER_NONE, Severity.WARNING, what, remedy))
    for name, target in schedulers.items():
        found += _check_scheduler(name, target, report)
    return [*found, *_check_costs(report)]


# ===================== Executor =====================


def _check_serving(executor: ExecutorReport) -> Iterator[Finding]:
    health = executor.health
    if not health.healthy:
        what = f"the executor does not serve: {health.message}"
        remedy = "its log says why; one that ends or starts is to be waited for"
        yield Finding(Code.EXECUTOR_NOT_SERVING, Severity.ERROR, what, remedy)
    else:
        name = executor.model.served_model_name
        yield Finding(Code.EXECUTOR, Severity.OK, f"the executor serves {name}")


def _check_plans(executor: ExecutorReport, *, policy_fails: bool) -> Iterator[Finding]:
    counters = executor.counters
    if counters is None:
        return
    fallbacks = sum(counters.num_fallback_steps.values())
    num_steps = counters.num_planned_steps + fallbacks
    if num_steps < _MIN_STEPS:
        if fallbacks:
            told = f"{counters.num_planned_steps} of {num_steps} steps with drafts so far"
            what = f"{told} had a plan in time; fallbacks: {_fallbacks(counters)}"
            remedy = f"look again after {_MIN_STEPS} steps: the first ones are often late"
            yield Finding(Code.PLANS, Severity.NOTE, what, remedy)
        return
    share = counters.num_planned_steps / num_steps
    told = f"{share:.1%} of {num_steps} steps with drafts had a plan in time"
    if share >= _MIN_PLANNED_SHARE:
        yield Finding(Code.PLANS, Severity.OK, told)
        return
    told += f"; fallbacks: {_fallbacks(counters)}"
    late = "give the scheduler a core of its own (--planner-core, CPU limits, priorities)"
    remedy = (
        f"late: {'mend the policy first (policy.fails)' if policy_fails else late};"
        " no_scheduler: start one; others: restart the scheduler"
    )
    yield Finding(Code.PLANS_LATE, Severity.WARNING, told, remedy)


def _fallbacks(counters: executor_pb2.StepCounters) -> str:
    reasons = sorted(counters.num_fallback_steps.items())
    return ", ".join(f"{count} {reason}" for reason, count in reasons if count)


# ===================== Schedulers =====================


def _check_scheduler(name: str, target: str, report: Report) -> Iterator[Finding]:
    told = report.schedulers[name]
    if isinstance(told, str):
        what = f"scheduler {name} listens and does not answer ({told}): stopped or hung"
        remedy = "restart it; killing it loses no request (kill -9), a shadow takes over"
        yield Finding(Code.SCHEDULER_SILENT, Severity.ERROR, what, remedy)
        return
    if told.is_serving is False:
        what = f"scheduler {name} does not serve: it compiles, or it is ending"
        remedy = "wait: a first start compiles for a minute or more; its log says `serving`"
        yield Finding(Code.SCHEDULER_NOT_SERVING, Severity.WARNING, what, remedy)
    else:
        what = f"scheduler {name} serves, version {told.status.version}"
        yield Finding(Code.SCHEDULER, Severity.OK, what)
    protocol = list(_check_protocol(name, told))
    yield from protocol
    if told.is_serving is not False and not any(
        each.severity is Severity.ERROR for each in protocol
    ):
        yield from _check_attached(name, target, report.executor)


def _check_protocol(name: str, told: SchedulerReport) -> Iterator[Finding]:
    theirs = VersionRange.of(told.status.protocol)
    newest = min(theirs.max_version, PROTOCOL_RANGE.max_version)
    if newest not in theirs or newest not in PROTOCOL_RANGE:
        what = f"scheduler {name} speaks protocol {theirs}, this installation {PROTOCOL_RANGE}"
        remedy = "upgrade the older one: releases next to each other understand each other"
        yield Finding(Code.PROTOCOL_RANGE, Severity.ERROR, what, remedy)
        return
    yield Finding(Code.PROTOCOL, Severity.OK, f"scheduler {name} speaks protocol {theirs}")
    for attachment in told.status.attachments:
        who = f"{name} and {attachment.executor_name}"
        missing = [each for each in FEATURES if each not in attachment.features]
        if missing:
            names = ", ".join(map(_feature_text, missing))
            what = f"{who} do not both have {names}: promote, drain or hand-over will not work"
            remedy = "upgrade the older one of the two"
            yield Finding(Code.PROTOCOL_FEATURES, Severity.WARNING, what, remedy)


def _feature_text(feature: scheduler_pb2.Feature.ValueType) -> str:
    return enum_word(scheduler_pb2.Feature.DESCRIPTOR, feature)


def _check_attached(name: str, target: str, executor: ExecutorReport | str) -> Iterator[Finding]:
    if isinstance(executor, str) or executor.schedulers is None:
        return
    attached = next((e for e in executor.schedulers.schedulers if e.target == target), None)
    if attached is None:
        what = f"scheduler {name} serves, and the executor is not attached to it"
        remedy = (
            "run both with the same --run-dir, the executor with --scheduler auto; the executor's"
            " log has `cannot attach` with the reason; it has room for four schedulers"
        )
        yield Finding(Code.SCHEDULER_NOT_ATTACHED, Severity.ERROR, what, remedy)
    elif target.startswith("unix:") and attached.transport == scheduler_pb2.TRANSPORT_INLINE:
        what = f"steps to {name} travel on the stream, not in shared memory"
        if attached.transport_reason:
            what += f": {attached.transport_reason}"
        remedy = "put both in one run directory (a shared volume); leave --transport at auto"
        yield Finding(Code.TRANSPORT_INLINE, Severity.WARNING, what, remedy)


def _check_costs(report: Report) -> Iterator[Finding]:
    """What the schedulers were told of their executors' cost profiles."""
    answers = (told for told in report.schedulers.values() if not isinstance(told, str))
    attachments = (each for told in answers for each in told.status.attachments)
    for name in sorted({each.executor_name for each in attachments if each.cost_disturbed}):
        what = f"{name} measured what a step costs while its threads had to wait for cores"
        remedy = (
            "restart it while nothing else computes, and it measures again; where a CPU limit holds"
            " it back, give it no more threads than that has cores (--num-threads)"
        )
        yield Finding(Code.COST_DISTURBED, Severity.WARNING, what, remedy)
