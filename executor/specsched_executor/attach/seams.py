"""What attaching needs from the rest of the executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from specsched_protocol.v1 import plan_pb2, scheduler_pb2

from specsched_executor.transport.inline import InlineLane
from specsched_executor.transport.lanes import Lane, LaneOffer, LaneSwitch

from .endpoints import SchedulerEndpoint
from .supervision import SupervisionConfig

__all__ = ["AttachConfig", "ExecutorFacts", "LaneHost"]


class LaneHost(Protocol):
    """Owner of the decision lanes. Safe to call from any thread but never blocks on the engine."""

    def open_lane(self, *, share_memory: bool = True) -> LaneOffer:
        """Open a free lane; raises LaneError where all are taken."""

    def run_inline(self, lane: int) -> InlineLane:
        """The far end of the lane, for a session whose steps travel on its stream."""

    def lane_ready(self, lane: int) -> None:
        """The scheduler has mapped the lane and waits on the doorbell."""

    def close_lane(self, lane: int) -> None:
        """The scheduler is gone: nothing in the lane counts any more."""

    def activate(self, lane: int | None) -> None:
        """Read decisions from `lane` as of the next step; None: from no lane."""

    def begin_switch(self, lane: int, *, yields: bool = False) -> LaneSwitch:
        """Read decisions from `lane` as of the first step whose plan it has ready.

        yields: and for which the active lane has none.
        """

    def lane(self, lane: int) -> Lane:
        """The open lane of that number, with its health and its tally."""

    def has_plan(self, lane: int) -> bool:
        """Whether `lane` has a plan for the step that was asked about last."""

    def last_read_step_id(self) -> int:
        """The step whose plan was read last."""

    def set_cost(self, cost: plan_pb2.CostModel) -> None:
        """Price the steps that are compared by this profile."""

    def compare_shadows(self) -> int:
        """Compare what waits for it; for one thread."""


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What an executor tells a scheduler about itself when it attaches."""

    boot_id: bytes
    name: str
    version: str
    model: scheduler_pb2.ModelFacts
    capture_sizes: tuple[int, ...]
    cost: plan_pb2.CostModel
    current_step_id: Callable[[], int]
    calibration: scheduler_pb2.Calibration | None = None


@dataclass(frozen=True, slots=True)
class AttachConfig:
    """Whom to attach to besides the sockets found, by what, and intervals and limits.

    shares_memory, accepts_inline: transports offered to a scheduler, as far as its endpoint allows.
    """

    endpoints: tuple[SchedulerEndpoint, ...] = ()
    shares_memory: bool = True
    accepts_inline: bool = True
    poll_ms: int = 200
    heartbeat_ms: int = 1000
    min_backoff_ms: int = 100
    max_backoff_ms: int = 5000
    # A scheduler that has just started compiles its decision code before it answers.
    handshake_timeout_ms: int = 120_000
    max_message_bytes: int = 4 << 20
    supervise_ms: int = 20
    compare_ms: int = 100  # each time a step is late by some 0.1 ms
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
