"""Options of the scheduler process."""

from __future__ import annotations

import os

from pydantic import Field, field_validator
from specsched_protocol.settings import ProcessSettings

__all__ = ["SchedulerConfig"]


class SchedulerConfig(ProcessSettings):
    """How one scheduler runs; every field is a flag and an environment variable."""

    env_prefix = "SPECSCHED_SCHEDULER_"

    name: str = Field(
        "default", description="Name of this scheduler; its socket is RUN_DIR/schedulers/NAME.sock"
    )
    policy: str = Field("throughput", description='Policy, e.g. "throughput" or "fixed(3)"')
    max_attachments: int = Field(
        8, ge=1, le=64, description="Executors that may be attached at the same time"
    )
    max_message_bytes: int = Field(
        4 << 20, ge=64 << 10, le=64 << 20, description="Largest gRPC message accepted"
    )
    planner_spin_us: float = Field(
        20.0, ge=0, le=1e6, description="Time a planner polls for a request before it sleeps"
    )
    planner_core: int | None = Field(
        None, ge=0, description="CPU that planners are pinned to; none: any"
    )
    heartbeat_ms: int = Field(
        1000, ge=50, le=60_000, description="Interval of the heartbeats on an Attach stream"
    )
    hello_timeout_ms: int = Field(
        5000, ge=100, le=60_000, description="Time an executor has to introduce itself"
    )
    shutdown_grace_ms: int = Field(
        2000, ge=0, le=60_000, description="Time running calls get when the process is told to end"
    )

    @field_validator("planner_core")
    @classmethod
    def _check_core(cls, core: int | None) -> int | None:
        usable = sorted(os.sched_getaffinity(0))
        if core is not None and core not in usable:
            raise ValueError(f"accepted: a CPU this process may use, {usable}")
        return core
