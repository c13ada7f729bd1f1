"""A status report as tables or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from specsched_protocol.console import to_stdout
from specsched_protocol.policy_text import policy_text
from specsched_protocol.start_marks import StartingExecutor
from specsched_protocol.v1 import executor_pb2

from specsched_client.cli._console import plain, print_json
from specsched_client.cli._lane_views import failures_text, role_text, transport_text
from specsched_client.cli._status_report import ExecutorReport, Report, SchedulerReport


def print_report(report: Report, run_dir: Path, *, as_json: bool) -> None:
    """Print to stdout. run_dir: where schedulers were looked for."""
    if as_json:
        print_json(_to_json(report))
        return
    console = to_stdout()
    console.print(_table(f"executor {report.target}", _executor_rows(report.executor)))
    for each in report.starting:
        console.print(start_text(each))
    if not report.schedulers:
        console.print(f"no scheduler in the run directory, {run_dir}")
    for name, status in report.schedulers.items():
        console.print(_table(f"scheduler {name}", _scheduler_rows(status)))


def start_text(executor: StartingExecutor) -> str:
    """One line about an executor that does not serve yet."""
    seconds = max(0.0, time.time() - executor.since_s)
    where = f"an executor (pid {executor.pid}) that will serve at {executor.target}"
    return f"{where} has been starting for {seconds:.0f} s"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _executor_rows(executor: ExecutorReport | str) -> Iterable[tuple[str, str]]:
    if isinstance(executor, str):
        yield "unreachable", executor
        return
    model, load = executor.model, executor.load
    yield "state", "serving" if executor.health.healthy else executor.health.message
    yield "model", f"{model.served_model_name} ({executor.server.model_dtype})"
    yield "context", f"{model.max_context_length} tokens"
    yield "up", f"{executor.server.uptime_seconds:.0f} s"
    running, most = load.num_running_reqs, load.max_running_requests
    yield "requests", f"{running} of {most} running, {load.num_waiting_reqs} waiting"
    yield "KV cache", f"{load.token_usage:.0%} of {load.max_total_num_tokens} tokens"
    yield "output", f"{load.gen_throughput:.1f} tokens/s"
    counters = executor.counters
    if counters is not None:
        yield "steps", f"{counters.num_steps}, {counters.num_rows} rows"
        yield "plans", _plans(counters)
        yield "drafts", _drafts(counters)
        yield "pressure", _pressure(counters)
    if executor.schedulers is not None:
        for attached in executor.schedulers.schedulers:
            yield "plans from", _attached(attached)
        switches = sorted(executor.schedulers.num_switches.items())
        yield "switches", ", ".join(f"{number} {reason}" for reason, number in switches) or "none"


def _plans(counters: executor_pb2.StepCounters) -> str:
    reasons = sorted(counters.num_fallback_steps.items())
    fallbacks = ", ".join(f"{number} {reason}" for reason, number in reasons if number)
    return f"{counters.num_planned_steps} in time; fallbacks: {fallbacks or 'none'}"


def _attached(scheduler: executor_pb2.AttachedScheduler) -> str:
    state = "active" if scheduler.active else role_text(scheduler.role, scheduler.given_up_for)
    reason = f" ({scheduler.transport_reason})" if scheduler.transport_reason else ""
    told = f"{scheduler.name}, {state}, {transport_text(scheduler.transport)}{reason}"
    if scheduler.HasField("policy_failures"):
        told += f"; late by {failures_text(scheduler.policy_failures)}"
    return told


def _drafts(counters: executor_pb2.StepCounters) -> str:
    drafted, scheduled = counters.num_drafted_tokens, counters.num_scheduled_tokens
    verified, accepted = counters.num_verified_tokens, counters.num_accepted_tokens
    return f"{drafted} drafted, {scheduled} scheduled, {verified} verified, {accepted} accepted"


def _pressure(counters: executor_pb2.StepCounters) -> str:
    preempted, failed = counters.num_preemptions, counters.num_failed_requests
    steps = counters.num_failed_steps
    return f"{preempted} preemptions, {failed} failed requests, {steps} failed steps"


_STATES: Final = {
    True: "serving",
    False: "not serving: it compiles (at a first start, for a minute or more), or it is ending",
    None: "unknown",
}


def _scheduler_rows(scheduler: SchedulerReport | str) -> Iterable[tuple[str, str]]:
    if isinstance(scheduler, str):
        yield "unreachable", scheduler
        return
    status = scheduler.status
    yield "state", _STATES[scheduler.is_serving]
    yield "version", f"{status.version}, up {status.uptime_seconds:.0f} s"
    yield "policy", policy_text(status.policy)
    yield "policies", ", ".join(status.policies)
    if not status.attachments:
        yield "attached", "no executor"
    for attachment in status.attachments:
        counters = attachment.counters
        where = f"lane {attachment.lane}, {transport_text(attachment.transport)}"
        lane = attachment.lane_status
        told = f", {role_text(lane.role, lane.given_up_for)}" if lane.role else ""
        yield "attached", f"{attachment.executor_name}, {where}{told}"
        yield (
            "decisions",
            (
                f"{counters.num_decisions}, {counters.num_missed_requests} missed, "
                f"{counters.plan_us_p50:.0f} us p50, {counters.plan_us_p99:.0f} us p99"
            ),
        )
        if attachment.HasField("policy_failures"):
            yield "unanswered", failures_text(attachment.policy_failures)


def _to_json(report: Report) -> dict[str, Any]:
    return {
        "executor": {"target": report.target, **_executor_json(report.executor)},
        "schedulers": {
            name: _scheduler_json(scheduler) for name, scheduler in report.schedulers.items()
        },
        "starting": [asdict(each) for each in report.starting],
    }


def _scheduler_json(scheduler: SchedulerReport | str) -> dict[str, Any]:
    if isinstance(scheduler, str):
        return {"error": scheduler}
    return {"is_serving": scheduler.is_serving, **plain(scheduler.status)}


def _executor_json(executor: ExecutorReport | str) -> dict[str, Any]:
    if isinstance(executor, str):
        return {"error": executor}
    return {
        "health": plain(executor.health),
        "model": plain(executor.model),
        "server": plain(executor.server),
        "load": plain(executor.load),
        "counters": None if executor.counters is None else plain(executor.counters),
        "schedulers": None if executor.schedulers is None else plain(executor.schedulers),
    }
