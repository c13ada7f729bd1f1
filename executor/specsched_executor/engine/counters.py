"""What an engine has done and how it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from specsched_protocol.plan import FallbackReason

__all__ = ["EngineStats", "StepCounters"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; totals count since the start.

    num_used_tokens / max_tokens: KV cache positions in held blocks / in all blocks.
    Of the draft tokens: num_drafted were made, num_scheduled allowed by the budgets, num_verified
    run through the target, num_accepted committed. num_rows: all rows of the target, anchors
    and prefill included. num_planned_steps: steps that carried out a decision; num_fallback_steps:
    steps with drafts that had none, by reason. Steps without a draft need no plan.
    """

    num_running_requests: int
    num_waiting_requests: int
    max_running_requests: int
    num_used_tokens: int
    max_tokens: int
    num_steps: int
    num_planned_steps: int
    num_fallback_steps: Mapping[FallbackReason, int]
    num_rows: int
    num_drafted_tokens: int
    num_scheduled_tokens: int
    num_verified_tokens: int
    num_accepted_tokens: int
    num_output_tokens: int
    num_preemptions: int
    num_failed_steps: int
    num_failed_requests: int
    num_failed_sinks: int
    last_budget: int


@dataclass(slots=True)
class StepCounters:
    """Totals of a step loop; see EngineStats."""

    num_steps: int = 0
    num_planned_steps: int = 0
    num_fallback_steps: Counter[FallbackReason] = field(default_factory=Counter)
    num_rows: int = 0
    num_drafted_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_verified_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_failed_steps: int = 0
    num_failed_requests: int = 0
    last_budget: int = 0
