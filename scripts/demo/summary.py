"""The table at the end: differences of counters that the processes keep themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from specsched_protocol.v1.executor_pb2 import StepCounters

__all__ = [
    "MIN_ON_PLAN_SHARE",
    "Round",
    "difference",
    "on_plan_share",
    "summary_table",
    "summed",
]

MIN_ON_PLAN_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over all prompts under one policy.

    counters: the executor's, end minus start. elapsed_s: first request sent to last answer done.
    plan_us_p50: the scheduler's own median of seeing a request to publishing its decision, over
    all decisions up to the end of the round.
    """

    policy: str
    counters: StepCounters
    elapsed_s: float
    plan_us_p50: float
    texts: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests over the time of the round."""
        return self.counters.num_output_tokens / self.elapsed_s


def difference(end: StepCounters, start: StepCounters) -> StepCounters:
    """Counters of the interval between two readings of one process."""
    delta = StepCounters()
    for field in StepCounters.DESCRIPTOR.fields:
        if field.message_type is None:
            setattr(delta, field.name, getattr(end, field.name) - getattr(start, field.name))
    for reason, count in end.num_fallback_steps.items():
        if grown := count - start.num_fallback_steps.get(reason, 0):
            delta.num_fallback_steps[reason] = grown
    return delta


def summed(rounds: Sequence[Round]) -> list[Round]:
    """One for each policy, in order of its first round; latency and texts are the last round's."""
    sums: dict[str, Round] = {}
    for one in rounds:
        before = sums.get(one.policy)
        sums[one.policy] = one if before is None else _sum(before, one)
    return list(sums.values())


def _sum(one: Round, later: Round) -> Round:
    counters = StepCounters()
    for field in StepCounters.DESCRIPTOR.fields:
        if field.message_type is None:
            values = (getattr(each.counters, field.name) for each in (one, later))
            setattr(counters, field.name, sum(values))
    for each in (one, later):
        for reason, count in each.counters.num_fallback_steps.items():
            counters.num_fallback_steps[reason] += count
    return replace(later, counters=counters, elapsed_s=one.elapsed_s + later.elapsed_s)


def num_steps_with_drafts(counters: StepCounters) -> int:
    """Steps that needed a plan, whether they had one or fell back."""
    return counters.num_planned_steps + sum(counters.num_fallback_steps.values())


def on_plan_share(rounds: Sequence[Round]) -> float:
    """Steps with drafts that ran on a plan, as a share; 1.0 when no step had any."""
    needed = sum(num_steps_with_drafts(r.counters) for r in rounds)
    return sum(r.counters.num_planned_steps for r in rounds) / needed if needed else 1.0


def summary_table(rounds: Sequence[Round]) -> Table:
    """One column for each of `rounds`."""
    table = Table(title="What the processes counted", title_justify="left")
    table.add_column("policy", style="dim")
    for one in rounds:
        table.add_column(one.policy, justify="right")
    counted = [
        ("steps", "num_steps"),
        ("tokens drafted", "num_drafted_tokens"),
        ("tokens scheduled", "num_scheduled_tokens"),
        ("tokens verified", "num_verified_tokens"),
        ("tokens accepted", "num_accepted_tokens"),
        ("tokens put out", "num_output_tokens"),
    ]
    for label, name in counted:
        table.add_row(label, *(f"{getattr(r.counters, name):,}" for r in rounds))
    table.add_section()
    table.add_row("tokens/s", *(f"{r.tokens_per_second:.1f}" for r in rounds))
    table.add_row("steps on plan", *(_share_on_plan(r) for r in rounds))
    table.add_row("fallbacks", *(_fallbacks(r.counters) for r in rounds))
    return table


def _share_on_plan(one: Round) -> str:
    needed = num_steps_with_drafts(one.counters)
    if not needed:
        return "none needed"
    return f"{one.counters.num_planned_steps}/{needed} ({on_plan_share([one]):.1%})"


def _fallbacks(counters: StepCounters) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in counters.num_fallback_steps.items()) or "none"
