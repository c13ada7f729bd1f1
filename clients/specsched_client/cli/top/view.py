"""A frame as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specsched_client.cli._console import bar_line, bare_table, sparkline
from specsched_client.cli.top.frame import (
    DecisionFrame,
    ExecutorFrame,
    Frame,
    LaneFrame,
    StepFrame,
)

__all__ = ["draw"]

_SPARK_CELLS = 60
_BAR_CELLS = 20
_LOW_PLANNED_SHARE = 0.99
"""Below this share of steps with a plan, something is wrong: starved, restarted, too far away."""

_ROLE_STYLES = {"active": "green", "unreachable": "red", "suspended": "yellow"}


def draw(frame: Frame) -> RenderableType:
    """Everything, from the executor down to the newest decisions."""
    parts: list[RenderableType] = [_executor(frame)]
    if not frame.lanes:
        parts.append(Text("no scheduler is attached, none is in the run directory", "yellow"))
    else:
        parts += [Text(), _lanes(frame.lanes)]
    for lane in frame.lanes:
        if lane.reason:
            parts.append(Text(f"{lane.name}: {lane.reason}", style="yellow"))
    decided = next((lane for lane in frame.lanes if lane.decisions is not None), None)
    if decided is not None and decided.decisions is not None:
        parts += [Text(), _decisions(decided.name, decided.decisions)]
    return Group(*parts)


# ===================== Executor =====================


def _executor(frame: Frame) -> Table:
    table = Table(
        title=f"executor {frame.target}",
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    rows = (
        [("unreachable", Text(frame.executor, style="red"))]
        if isinstance(frame.executor, str)
        else _executor_rows(frame.executor)
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _executor_rows(executor: ExecutorFrame) -> Iterable[tuple[str, str | Text]]:
    yield "state", f"{executor.state}, {executor.model}, up {executor.uptime_s:.0f} s"
    share = executor.num_running / executor.max_running if executor.max_running else 0.0
    running = f"{executor.num_running} of {executor.max_running}, {executor.num_waiting} waiting"
    yield "requests", f"{bar_line(share, _BAR_CELLS)} {running}"
    cached, preempted = bar_line(executor.kv_cache_share, _BAR_CELLS), executor.num_preemptions
    yield "KV cache", f"{cached} {executor.kv_cache_share:.0%}, {preempted} preempted"
    if executor.num_failed_requests:
        yield "failed", Text(f"{executor.num_failed_requests} requests", style="red")
    if executor.steps is not None:
        yield from _step_rows(executor.steps)


def _step_rows(steps: StepFrame) -> Iterable[tuple[str, str | Text]]:
    output = f"{steps.output_tokens_per_second:.1f} tokens/s, {steps.steps_per_second:.1f} steps/s"
    yield "output", f"{output}, {_number(steps.tokens_per_step)} tokens per step"
    drafted = f"{_number(steps.drafted)} drafted, {_number(steps.scheduled)} scheduled"
    kept = f"{_number(steps.accepted)} accepted ({_percent(steps.accepted_share)} of verified)"
    yield "drafts", f"per step {drafted}, {_number(steps.verified)} verified, {kept}"
    yield "plans", _plans(steps)


def _plans(steps: StepFrame) -> Text:
    fallbacks = ", ".join(f"{count} {reason}" for reason, count in steps.fallbacks.items())
    text = f"{_percent(steps.planned_share)} in time; fallbacks: {fallbacks or 'none'}"
    is_low = steps.planned_share is not None and steps.planned_share < _LOW_PLANNED_SHARE
    return Text(text, style="yellow" if is_low else "")


# ===================== Schedulers =====================


def _lanes(lanes: tuple[LaneFrame, ...]) -> Table:
    table = bare_table(
        "scheduler", "role", "transport", "policy", "decisions/s", "us p50/p99", "same", "regret"
    )
    for lane in lanes:
        table.add_row(
            lane.name,
            Text(lane.role, style=_ROLE_STYLES.get(lane.role, "")),
            lane.transport or "-",
            lane.policy or "-",
            _number(lane.decisions_per_second),
            f"{_number(lane.plan_us_p50, 0)}/{_number(lane.plan_us_p99, 0)}",
            _percent(lane.same_share),
            _number(lane.regret_tokens, 3),
        )
    return table


def _decisions(name: str, decisions: DecisionFrame) -> Table:
    table = Table(
        title=f"decisions of {name}",
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    budget, drafts = decisions.budgets[-1], decisions.drafts[-1]
    of_drafts = f"{budget} of {drafts} drafts, {decisions.num_requests} requests"
    length = decisions.next_draft_tokens
    table.add_row("step", f"{decisions.step_id}: {of_drafts}")
    table.add_row("budget", f"{sparkline(decisions.budgets, _SPARK_CELLS)} {budget}")
    table.add_row("drafts", f"{sparkline(decisions.drafts, _SPARK_CELLS)} {drafts}")
    expected_ms = decisions.expected_ms[-1]
    table.add_row("ms", f"{sparkline(decisions.expected_ms, _SPARK_CELLS)} {expected_ms:.2f}")
    table.add_row(
        "expects",
        f"{decisions.expected_tokens:.2f} tokens in {expected_ms:.2f} ms;"
        f" next drafts: {'full' if length is None else length}",
    )
    notes = [f"model {decisions.model_state}", *decisions.flags]
    table.add_row("notes", ", ".join(notes))
    return table


def _number(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
