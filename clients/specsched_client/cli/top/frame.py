"""What `specsched top` shows at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DecisionFrame", "ExecutorFrame", "Frame", "LaneFrame", "StepFrame"]


@dataclass(frozen=True, slots=True)
class StepFrame:
    """Steps of the interval. Shares are None where there was nothing to share.

    Tokens are per step; fallbacks count steps, by reason. planned_share: of the steps with drafts.
    """

    seconds: float
    steps_per_second: float
    output_tokens_per_second: float
    tokens_per_step: float | None
    planned_share: float | None
    fallbacks: Mapping[str, int]
    drafted: float | None
    scheduled: float | None
    verified: float | None
    accepted: float | None
    accepted_share: float | None


@dataclass(frozen=True, slots=True)
class ExecutorFrame:
    """An executor now. steps: None in the first frame, and where it does not count them."""

    state: str
    model: str
    uptime_s: float
    num_running: int
    max_running: int
    num_waiting: int
    kv_cache_share: float
    num_preemptions: int
    num_failed_requests: int
    steps: StepFrame | None


@dataclass(frozen=True, slots=True)
class DecisionFrame:
    """The newest decisions of a scheduler; `budgets` and `expected_ms` have the oldest first.

    num_requests, num_drafts: of the newest. flags: its flags, in lower case.
    """

    step_id: int
    num_requests: int
    num_drafts: int
    next_draft_tokens: int | None
    expected_tokens: float
    model_state: str
    flags: tuple[str, ...]
    budgets: tuple[int, ...]
    drafts: tuple[int, ...]
    expected_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LaneFrame:
    """One scheduler.

    role: "active", "shadow", ...; without one "attached", "not attached" or "unreachable".
    same_share, regrets: shadows only. decisions_per_second: None in the first frame.
    """

    name: str
    role: str
    reason: str = ""
    transport: str = ""
    version: str = ""
    policy: str = ""
    decisions_per_second: float | None = None
    plan_us_p50: float | None = None
    plan_us_p99: float | None = None
    same_share: float | None = None
    regret_tokens: float | None = None
    decisions: DecisionFrame | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown at one moment. executor: why it does not answer, where it does not."""

    target: str
    executor: ExecutorFrame | str
    lanes: tuple[LaneFrame, ...] = ()

    @property
    def anyone_answered(self) -> bool:
        """Whether at least one process told anything."""
        return not isinstance(self.executor, str) or any(
            lane.role != "unreachable" for lane in self.lanes
        )
