"""When the active scheduler is given up, and how fit the others are: pure."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_executor.transport.lane_health import LaneHealth

from .election import SwitchReason

__all__ = ["SupervisionConfig", "failure_of", "fitness_of", "has_recovered"]


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """Limits of patience.

    failover_after_ms: time from the first to the last of the steps that the active scheduler may
    leave without a plan, one after the other; min_fault_run: and so many steps at least.
    max_garbage_run: decisions in a row that no sound scheduler makes. min_sound_run: decisions
    after which a suspended one counts as recovered.
    """

    failover_after_ms: float = 500.0
    min_fault_run: int = 8
    max_garbage_run: int = 3
    min_sound_run: int = 100


def failure_of(
    health: LaneHealth, followed_since_ns: int, last_heard_ns: int, config: SupervisionConfig
) -> SwitchReason | None:
    """Why a scheduler whose lane is followed should be given up; None: it should not.

    A stall alone is no reason, as long as it ends within `failover_after_ms`: on a shared machine
    many do. Time in which no step asks does not count, nor does the time before it was followed
    (followed_since_ns). last_heard_ns: of its stream. A process that is stopped is silent there as
    well, one whose planner hangs is not.
    """
    if health.garbage_run >= config.max_garbage_run:
        return SwitchReason.GARBAGE
    since_ns = max(health.fault_since_ns, followed_since_ns)
    if health.fault_run < config.min_fault_run:
        return None
    if health.last_fault_ns - since_ns < config.failover_after_ms * 1e6:
        return None
    is_silent = last_heard_ns < since_ns
    return SwitchReason.UNRESPONSIVE if is_silent else SwitchReason.LIVELOCKED


def fitness_of(
    health: LaneHealth, mean_regret: float, config: SupervisionConfig
) -> tuple[float, ...] | None:
    """Fewest faults of late first (in steps of 5 %), then the least regret; None: it fails now."""
    fails = health.fault_run >= config.min_fault_run or health.garbage_run > 0
    if fails:
        return None
    return -round(health.fault_share * 20.0), -mean_regret


def has_recovered(health: LaneHealth, config: SupervisionConfig) -> bool:
    """Whether one that was given up may take over again when it has to."""
    return health.sound_run >= config.min_sound_run
