"""What a soak measured, as one document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specsched_protocol.v1 import executor_pb2

from .load import Phase

__all__ = ["PhaseReport", "fallbacks_between", "gap_ms", "growth_faults"]

_MAX_MORE_MIB = 64
_MAX_MORE = {"descriptors": 8, "threads": 8}
"""What comes and goes with the schedulers that happen to be attached."""


@dataclass
class PhaseReport:
    """Sums over all that happened in phases of one kind."""

    num_events: int = 0
    num_planned_steps: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)
    num_answers: int = 0
    num_different: int = 0

    def add(
        self, before: executor_pb2.StepCounters, after: executor_pb2.StepCounters, phase: Phase
    ) -> None:
        """One more phase of this kind."""
        self.num_events += 1
        self.num_planned_steps += after.num_planned_steps - before.num_planned_steps
        for reason, number in fallbacks_between(before, after).items():
            self.fallbacks[reason] = self.fallbacks.get(reason, 0) + number
        self.gaps_s += phase.gaps_s
        self.num_answers += phase.num_answers
        self.num_different += phase.num_different

    def to_json(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "events": self.num_events,
            "answers": self.num_answers,
            "different_answers": self.num_different,
            "planned_steps": self.num_planned_steps,
            "fallback_steps": self.fallbacks,
            "gap_ms_p50": gap_ms(self.gaps_s, 0.5),
            "gap_ms_p99": gap_ms(self.gaps_s, 0.99),
        }


def fallbacks_between(
    before: executor_pb2.StepCounters, after: executor_pb2.StepCounters
) -> Mapping[str, int]:
    """Steps without a plan in between, by reason."""
    numbers = {
        reason: after.num_fallback_steps[reason] - before.num_fallback_steps.get(reason, 0)
        for reason in after.num_fallback_steps
    }
    return {reason: number for reason, number in numbers.items() if number}


def growth_faults(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """What grew more than it may in a process that keeps nothing of what is over."""
    more_mib = (after["resident_kib"] - before["resident_kib"]) / 1024
    faults = [f"memory grew by {more_mib:.0f} MiB"] if more_mib > _MAX_MORE_MIB else []
    for name, most in _MAX_MORE.items():
        if after[name] > before[name] + most:
            faults.append(f"{name} grew from {before[name]} to {after[name]}")
    return faults


def gap_ms(gaps_s: list[float], quantile: float) -> float | None:
    """Quantile of the times between two deltas of a stream."""
    if not gaps_s:
        return None
    rank = min(len(gaps_s) - 1, math.ceil(quantile * len(gaps_s)) - 1)
    return round(sorted(gaps_s)[rank] * 1e3, 3)
