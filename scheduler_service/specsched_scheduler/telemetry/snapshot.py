"""Everything that a scheduler tells of itself at one instant.

Metrics and page are both written from it, so that they cannot disagree. `as_json` is what the page
gets: the dataclasses below, field by field, with numbers that are no JSON (NaN, infinity) as null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .decisions import BatchSize, Second
from .outcomes import PositionOutcome
from .steps import JudgedStep

__all__ = [
    "Choice",
    "ConfidenceSnapshot",
    "CostSnapshot",
    "DecisionSnapshot",
    "ExecutorSnapshot",
    "HistogramSnapshot",
    "LaneSnapshot",
    "LearningSnapshot",
    "NewestDecision",
    "PlanOutcomesSnapshot",
    "Snapshot",
    "StepCost",
    "StepTimeSnapshot",
    "as_json",
]


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """bounds: upper ones, rising; counts: one more than bounds, the last one beyond all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class NewestDecision:
    """The last decision. expected_ms: 0 without a cost model; plan_us: from seeing the request."""

    step_id: int
    num_requests: int
    num_draft_tokens: int
    budget: int
    next_draft_tokens: int
    expected_tokens: float
    expected_ms: float
    plan_us: float
    is_flat: bool


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """num_*, budget: totals. seconds: the last 300 in which there was any; sizes: by requests."""

    num_decisions: int
    num_missed: int
    num_invalid: int
    num_policy_errors: int
    num_torn_reads: int
    num_requests: int
    num_draft_tokens: int
    budget: int
    latency_s: HistogramSnapshot
    newest: NewestDecision | None
    seconds: tuple[Second, ...]
    sizes: tuple[BatchSize, ...]
    chosen: NewestDecision | None = None
    """The newest one with drafts, if that was in the last seconds, else the newest."""


@dataclass(frozen=True, slots=True)
class ConfidenceSnapshot:
    """num_frozen_steps: None where that cannot be judged. positions: survival, reliability and
    calibration error of late, by draft position."""

    num_repaired: int
    num_missing_steps: int
    num_frozen_steps: int | None
    num_judged: int
    num_expected: float
    num_accepted: int
    positions: tuple[PositionOutcome, ...]


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """The staircase that decisions go by: a step of n rows costs ms of the first size >= n up to
    capture_limit, beyond it what lies between two sizes. profiled_ms: as measured at start."""

    model_state: str
    is_corrected: bool
    capture_limit: int
    sizes: tuple[int, ...]
    ms: tuple[float, ...]
    profiled_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepCost:
    """A place on the staircase."""

    num_rows: int
    ms: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What the newest decision chose from, prompts left out: rows without and with all drafts."""

    without_drafts: StepCost
    chosen: StepCost
    all_drafts: StepCost


@dataclass(frozen=True, slots=True)
class StepTimeSnapshot:
    """Predicted against measured, of steps that were decided here. newest: the chosen point."""

    num_steps: int
    predicted_s: float
    measured_s: float
    plain_s: float
    ratios: HistogramSnapshot
    newest: JudgedStep | None


@dataclass(frozen=True, slots=True)
class LearningSnapshot:
    """Totals of what is learned from."""

    num_reports: int
    num_lost_reports: int
    num_lost_confidences: int
    num_publications: int
    num_probes: int
    num_failures: int


@dataclass(frozen=True, slots=True)
class PlanOutcomesSnapshot:
    """Steps with drafts since the executor started, as it counts them: with a plan of whatever
    scheduler, and without, by reason."""

    num_planned: int
    num_fallback: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """A scheduler that the executor is attached to, this one among them."""

    lane: int
    scheduler: str
    version: str
    policy: str
    role: str


@dataclass(frozen=True, slots=True)
class ExecutorSnapshot:
    """One attached executor. role: "" before it told; lanes: as it told them last.

    choice: None before the first decision, and without a cost model. plan_outcomes: None where it
    does not tell.
    """

    slot: int
    boot_id: str
    name: str
    model: str
    drafter: str
    transport: str
    max_draft_tokens: int
    role: str
    active_scheduler: str
    decisions: DecisionSnapshot
    confidences: ConfidenceSnapshot
    cost: CostSnapshot
    choice: Choice | None
    step_times: StepTimeSnapshot
    plan_outcomes: PlanOutcomesSnapshot | None
    learning: LearningSnapshot
    lanes: tuple[LaneSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """time_s: Unix time. num_attached: executors that ever attached."""

    time_s: float
    name: str
    version: str
    policy: str
    num_attached: int
    is_learning_frozen: bool
    executors: tuple[ExecutorSnapshot, ...]


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Plain values for `json.dumps`."""
    plain: dict[str, Any] = _plain(asdict(snapshot))
    return plain


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case str() | bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case Iterable():
            return [_plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} has no place in a snapshot")
