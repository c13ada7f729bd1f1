"""What an engine has done and how it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from specsched_protocol.histogram import Histogram
from specsched_protocol.plan import FallbackReason, StepReport

__all__ = ["EngineStats", "StepCounters", "StepOutcomes"]

_STEP_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5),
)


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


class StepOutcomes:
    """Distributions over finished steps. The engine's thread writes, any may read.

    seconds: time of a step, drafting and verification. num_drafts: drafts of which at least one
    token was verified: one per request and step.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.seconds = Histogram(_STEP_SECONDS)
        self._lengths = np.zeros(max_draft_tokens + 1, dtype=np.int64)

    @property
    def num_drafts(self) -> int:
        """Requests, step by step, that had drafts verified."""
        return int(self._lengths.sum())

    @property
    def num_accepted_by_position(self) -> list[int]:
        """Drafts accepted at each draft position, [k]; their sum is that of all accepted."""
        longer: npt.NDArray[np.int64] = np.cumsum(self._lengths[:0:-1])[::-1]
        return [int(count) for count in longer]

    def observe(self, report: StepReport) -> None:
        """Count a step: some microseconds, however many requests it has."""
        self.seconds.observe((report.draft_ms + report.verify_ms) / 1e3)
        accepted = report.num_accepted[report.num_verified > 0]
        self._lengths += np.bincount(accepted, minlength=len(self._lengths))
