"""Options of the scheduler process."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from specsched_protocol.http.address import AUTO, OFF, HttpAddress, ProbeAddress
from specsched_protocol.listening import ListenAddress, ListenOptions
from specsched_protocol.settings import MissingPackageError, ProcessSettings

from specsched_scheduler.trace_config import TraceConfig

__all__ = ["SchedulerConfig"]


class SchedulerConfig(ProcessSettings, ListenOptions):
    """How one scheduler runs; every field is a flag and an environment variable."""

    env_prefix = "SPECSCHED_SCHEDULER_"

    name: str = Field(
        "default", description="Name of this scheduler; its socket is RUN_DIR/schedulers/NAME.sock"
    )
    listen: ListenAddress = Field(
        None,
        description="TCP address to listen on besides the socket, host:port; port 0: any free one."
        " Beyond this machine it needs the three TLS options",
    )
    tls_cert: Path | None = Field(
        None, description="PEM certificate that this scheduler shows, with the chain to its CA"
    )
    tls_key: Path | None = Field(None, description="PEM key of that certificate")
    tls_client_ca: Path | None = Field(
        None, description="PEM certificates of who signs the executors' and operators' certificates"
    )
    http_address: HttpAddress = Field(
        AUTO,
        description="Loopback address of page, metrics and health, host:port; auto: 127.0.0.1:9470,"
        " or any free port where that is taken; off: none",
    )
    page_promote: bool = Field(
        False,
        description="Let the page at http_address promote schedulers, by a button: whoever can"
        " open it can press it",
    )
    probe_address: ProbeAddress = Field(
        None,
        description="Address of health and metrics alone, host:port, plain text and without"
        " authentication: for a kubelet or a Prometheus on other machines; none: not served",
    )
    policy: str = Field("throughput", description='Policy, e.g. "throughput" or "fixed(3)"')
    learned_state: Path | None = Field(
        None,
        description="File of learned state to begin with, of `specsched calibration export`"
        " or `specsched calibrate --out`",
    )
    freeze_learning: bool = Field(
        False, description="Keep calibration and cost as they were at the start"
    )
    max_attachments: int = Field(
        8,
        ge=1,
        le=64,
        description="Executors that may be attached at the same time",
        json_schema_extra={"unit": "executors"},
    )
    max_message_bytes: int = Field(
        4 << 20, ge=64 << 10, le=64 << 20, description="Largest gRPC message accepted"
    )
    planner_spin_us: float = Field(
        20.0, ge=0, le=1e6, description="Time a planner polls for a request before it sleeps"
    )
    planner_core: int | None = Field(
        None,
        ge=0,
        description="CPU that planners are pinned to; none: any",
        json_schema_extra={"unit": "CPU number"},
    )
    heartbeat_ms: int = Field(
        400, ge=50, le=60_000, description="Interval of the heartbeats on an Attach stream"
    )
    hello_timeout_ms: int = Field(
        5000, ge=100, le=60_000, description="Time an executor has to introduce itself"
    )
    trace_dir: Path | None = Field(
        None, description="Folder for a trace of all steps, in Parquet files; none: no trace"
    )
    trace_max_bytes: int = Field(
        1 << 30, ge=1 << 20, description="Bytes of all trace files; the oldest are removed"
    )
    trace_file_bytes: int = Field(
        64 << 20, ge=1 << 16, description="Bytes of a trace file, then the next one is begun"
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

    @model_validator(mode="after")
    def _check_page(self) -> Self:
        if self.page_promote and self.http_address == OFF:
            raise ValueError("page_promote has no effect with http_address = off")
        return self

    @model_validator(mode="after")
    def _check_trace(self) -> Self:
        limits = {"trace_max_bytes", "trace_file_bytes"} & self.model_fields_set
        if self.trace_dir is None and limits:
            raise ValueError(f"{', '.join(sorted(limits))} has no effect without trace_dir")
        if self.trace_dir is not None and importlib.util.find_spec("pyarrow") is None:
            raise MissingPackageError("trace_dir needs pyarrow: pip install 'specsched[trace]'")
        if self.trace_file_bytes * 2 > self.trace_max_bytes:
            raise ValueError(
                f"trace_file_bytes = {self.trace_file_bytes}: accepted: at most half of"
                f" trace_max_bytes, {self.trace_max_bytes}"
            )
        return self

    @property
    def trace(self) -> TraceConfig | None:
        """Where steps are recorded; None: nowhere."""
        if self.trace_dir is None:
            return None
        return TraceConfig(self.trace_dir, self.trace_max_bytes, self.trace_file_bytes)

    @model_validator(mode="after")
    def _check_listening(self) -> Self:
        self.check_listening("listen on a loopback address")
        return self
