"""What the processes themselves counted during a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specsched_protocol.v1.executor_pb2 import StepCounters
from specsched_protocol.v1.scheduler_pb2 import GetStatusResponse

from specsched_client._async_client import AsyncClient
from specsched_client._errors import ServerError, UnsupportedError

__all__ = [
    "CountedSteps",
    "PlanLatency",
    "counted_between",
    "plan_latency",
    "read_counters",
    "typical_latency",
]


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Differences of an executor's counters over a round; the words are those of executor.proto."""

    num_steps: int
    num_rows: int
    num_planned_steps: int
    num_drafted_tokens: int
    num_scheduled_tokens: int
    num_verified_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_fallback_steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def budget_share(self) -> float | None:
        """Drafts that the budgets allowed, of those proposed."""
        return _share(self.num_scheduled_tokens, self.num_drafted_tokens)

    @property
    def acceptance(self) -> float | None:
        """Drafts kept, of those verified."""
        return _share(self.num_accepted_tokens, self.num_verified_tokens)

    @property
    def on_plan_share(self) -> float | None:
        """Steps with drafts that carried out a decision; None where no step had drafts."""
        num_needed = self.num_planned_steps + sum(self.num_fallback_steps.values())
        return _share(self.num_planned_steps, num_needed)

    def __add__(self, other: CountedSteps) -> CountedSteps:
        reasons = {*self.num_fallback_steps, *other.num_fallback_steps}
        totals = {name: getattr(self, name) + getattr(other, name) for name in _TOTALS}
        fallbacks = {
            reason: self.num_fallback_steps.get(reason, 0) + other.num_fallback_steps.get(reason, 0)
            for reason in sorted(reasons)
        }
        return CountedSteps(**totals, num_fallback_steps=fallbacks)


_TOTALS = tuple(name for name in CountedSteps.__dataclass_fields__ if name != "num_fallback_steps")


@dataclass(frozen=True, slots=True)
class PlanLatency:
    """Microseconds from seeing a request to publishing its decision, over the newest decisions."""

    p50_us: float
    p99_us: float


async def read_counters(client: AsyncClient) -> StepCounters | None:
    """The executor's totals; None from a server of the same API that keeps none."""
    try:
        return (await client.step_counters()).counters
    except UnsupportedError:
        return None


def counted_between(start: StepCounters | None, end: StepCounters | None) -> CountedSteps | None:
    """What grew between two readings. Raises ServerError where the process was another one."""
    if start is None or end is None:
        return None
    if end.num_steps < start.num_steps:
        raise ServerError("the executor was restarted during a round: its counters began anew")
    fallbacks = {
        reason: count - start.num_fallback_steps.get(reason, 0)
        for reason, count in sorted(end.num_fallback_steps.items())
        if count > start.num_fallback_steps.get(reason, 0)
    }
    totals = {name: getattr(end, name) - getattr(start, name) for name in _TOTALS}
    return CountedSteps(**totals, num_fallback_steps=fallbacks)


def plan_latency(status: GetStatusResponse | None) -> PlanLatency | None:
    """Of the slowest attachment that decided anything; None where none did."""
    counters = [each.counters for each in status.attachments] if status else []
    busy = [each for each in counters if each.num_decisions]
    if not busy:
        return None
    slowest = max(busy, key=lambda each: each.plan_us_p99)
    return PlanLatency(slowest.plan_us_p50, slowest.plan_us_p99)


def typical_latency(rounds: Sequence[PlanLatency | None]) -> PlanLatency | None:
    """The median of the rounds' medians, and the worst of their p99; None where none has any."""
    known = [each for each in rounds if each is not None]
    if not known:
        return None
    p50_us = statistics.median(each.p50_us for each in known)
    return PlanLatency(p50_us, max(each.p99_us for each in known))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
