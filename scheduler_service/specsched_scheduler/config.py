"""Options of the scheduler process."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from specsched_protocol.logs import LogFormat, LogLevel
from specsched_protocol.settings import Settings

__all__ = ["SchedulerConfig"]


class SchedulerConfig(Settings):
    """How one scheduler runs; every field is a flag and a SPECSCHED_* variable."""

    run_dir: Path | None = Field(
        None, description="Directory executors and schedulers meet in; none: one for this user"
    )
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
    heartbeat_ms: int = Field(
        1000, ge=50, le=60_000, description="Interval of the heartbeats on an Attach stream"
    )
    hello_timeout_ms: int = Field(
        5000, ge=100, le=60_000, description="Time an executor has to introduce itself"
    )
    shutdown_grace_ms: int = Field(
        2000, ge=0, le=60_000, description="Time running calls get when the process is told to end"
    )
    log_level: LogLevel = Field("info", description="Least severe level that is logged")
    log_format: LogFormat = Field("auto", description="auto: console on a terminal, else json")
