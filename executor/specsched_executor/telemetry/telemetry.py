"""The executor's metrics, read from counters that are there anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric as Family
from specsched_protocol.enum_words import enum_word
from specsched_protocol.metrics import Exposition
from specsched_protocol.plan import FallbackReason
from specsched_protocol.v1 import executor_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_executor.attach import AttachTotals, SwitchReason
from specsched_executor.engine import EngineStats, StepOutcomes

from . import catalogue as m
from .requests import FINISH_REASONS, RequestMeter

__all__ = ["EngineView", "ExecutorTelemetry", "Links"]


class EngineView(Protocol):
    """What is asked of the engine; any thread, never blocking."""

    @property
    def outcomes(self) -> StepOutcomes:
        """Distributions over its steps."""

    def stats(self) -> EngineStats:
        """Its totals and its load."""


@dataclass(frozen=True, slots=True)
class Links:
    """The executor's links to schedulers. is_looking: whether any are wanted."""

    is_looking: bool
    schedulers: executor_pb2.ListSchedulersResponse
    totals: AttachTotals


class ExecutorTelemetry:
    """Any thread. model_name: as clients see it. links: asked for at each scrape."""

    def __init__(
        self,
        model_name: str,
        engine: EngineView,
        requests: RequestMeter,
        links: Callable[[], Links],
    ) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._engine = engine
        self._requests = requests
        self._links = links

    def collect(self) -> Iterable[Family]:
        """For Prometheus."""
        out = Exposition(m.CATALOGUE, self._labels)
        stats = self._engine.stats()
        _load(out, stats)
        _requests(out, self._requests.total())
        _speculation(out, stats, self._engine.outcomes)
        _steps(out, stats, self._engine.outcomes)
        _schedulers(out, self._links())
        return out.families()


def _load(out: Exposition, stats: EngineStats) -> None:
    out.add(m.RUNNING, stats.num_running_requests)
    out.add(m.WAITING, stats.num_waiting_requests)
    out.add(m.MAX_RUNNING, stats.max_running_requests)
    out.add(m.KV_USAGE, stats.num_used_tokens / max(stats.max_tokens, 1))
    out.add(m.PREEMPTIONS, stats.num_preemptions)
    out.add(m.GENERATION_TOKENS, stats.num_output_tokens)


def _requests(out: Exposition, meter: RequestMeter) -> None:
    out.add(m.PROMPT_TOKENS, meter.num_prompt_tokens)
    for reason in FINISH_REASONS:
        out.add(m.REQUEST_SUCCESS, meter.num_finished[reason], reason)
    out.add_histogram(m.TIME_TO_FIRST_TOKEN, meter.first_token_s)
    out.add_histogram(m.TIME_PER_TOKEN, meter.per_token_s)
    out.add_histogram(m.LATENCY, meter.latency_s)


def _speculation(out: Exposition, stats: EngineStats, outcomes: StepOutcomes) -> None:
    out.add(m.DRAFTED, stats.num_drafted_tokens)
    out.add(m.SCHEDULED, stats.num_scheduled_tokens)
    out.add(m.VERIFIED, stats.num_verified_tokens)
    by_position = outcomes.num_accepted_by_position
    out.add(m.NUM_DRAFTS, outcomes.num_drafts)
    out.add(m.ACCEPTED, sum(by_position))
    for position, count in enumerate(by_position):
        out.add(m.ACCEPTED_PER_POS, count, position)


def _steps(out: Exposition, stats: EngineStats, outcomes: StepOutcomes) -> None:
    out.add(m.STEPS, stats.num_steps)
    out.add_histogram(m.STEP_SECONDS, outcomes.seconds)
    out.add(m.ROWS, stats.num_rows)
    out.add(m.PLANNED_STEPS, stats.num_planned_steps)
    for reason in FallbackReason:
        out.add(m.FALLBACK_STEPS, stats.num_fallback_steps.get(reason, 0), reason)
    out.add(m.FAILED_STEPS, stats.num_failed_steps)
    out.add(m.FAILED_REQUESTS, stats.num_failed_requests)
    out.add(m.FAILED_SINKS, stats.num_failed_sinks)


def _schedulers(out: Exposition, links: Links) -> None:
    known, totals = links.schedulers, links.totals
    out.add(m.LOOKS_FOR_SCHEDULERS, links.is_looking)
    out.add(m.LANES, len(known.schedulers))
    out.add(m.FOLLOWED, any(each.active for each in known.schedulers))
    out.add(m.ATTACHES, totals.num_attached)
    out.add(m.DETACHES, totals.num_ended, "ended")
    out.add(m.DETACHES, totals.num_crashed, "crashed")
    out.add(m.ATTACH_FAULTS, totals.num_faults)
    for reason in SwitchReason:
        out.add(m.SWITCHES, known.num_switches.get(reason, 0), reason)
    for each in known.schedulers:
        _lane(out, each)


def _lane(out: Exposition, it: executor_pb2.AttachedScheduler) -> None:
    transport = enum_word(pb.Transport.DESCRIPTOR, it.transport)
    role = enum_word(pb.LaneRole.DESCRIPTOR, it.role)
    out.add(m.LANE_INFO, 1, it.lane, it.name, it.version, transport, role)
    comparison = it.comparison
    out.add(m.LANE_STEPS, comparison.num_steps, it.lane)
    if comparison.num_steps:
        regret = comparison.mean_active_regret_tokens if it.active else None
        out.add(m.LANE_REGRET, comparison.mean_regret_tokens if regret is None else regret, it.lane)
    for reason, count in sorted(comparison.num_faults.items()):
        out.add(m.LANE_FAULTS, count, it.lane, reason)
