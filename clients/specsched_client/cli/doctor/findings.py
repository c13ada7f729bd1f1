"""What a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Code", "Finding", "Severity"]


class Severity(enum.StrEnum):
    """How bad a finding is: an `error` keeps something from working, a `warning` does so soon,
    or makes it slower than it could be; a `note` tells what is not there and may not have to be.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Code(enum.StrEnum):
    """Names of findings for programs, area first; they do not change between releases."""

    RUN_DIR = "run-dir"
    RUN_DIR_MISSING = "run-dir.missing"
    RUN_DIR_TYPE = "run-dir.type"
    RUN_DIR_OWNER = "run-dir.owner"
    RUN_DIR_MODE = "run-dir.mode"
    RUN_DIR_READ_ONLY = "run-dir.read-only"
    RUN_DIR_TOO_LONG = "run-dir.too-long"
    SOCKET = "socket"
    SOCKET_TYPE = "socket.type"
    SOCKET_OWNER = "socket.owner"
    SOCKET_MODE = "socket.mode"
    SOCKET_STALE = "socket.stale"
    EXECUTOR = "executor"
    EXECUTOR_STARTING = "executor.starting"
    EXECUTOR_UNREACHABLE = "executor.unreachable"
    EXECUTOR_NOT_SERVING = "executor.not-serving"
    POLICY_FAILS = "policy.fails"
    PLANS = "plans"
    PLANS_LATE = "plans.late"
    COST_DISTURBED = "cost.disturbed"
    SCHEDULER = "scheduler"
    SCHEDULER_NONE = "scheduler.none"
    SCHEDULER_SILENT = "scheduler.silent"
    SCHEDULER_NOT_SERVING = "scheduler.not-serving"
    SCHEDULER_NOT_ATTACHED = "scheduler.not-attached"
    PROTOCOL = "protocol"
    PROTOCOL_RANGE = "protocol.range"
    PROTOCOL_FEATURES = "protocol.features"
    TRANSPORT_INLINE = "transport.inline"
    MEMORY = "memory"
    MEMORY_SIZE = "memory.size"
    MEMORY_SEALS = "memory.seals"
    HUGE_PAGES = "huge-pages"
    HUGE_PAGES_NEVER = "huge-pages.never"
    HUGE_PAGES_NOT_ASKED_FOR = "huge-pages.not-asked-for"
    HUGE_PAGES_UNKNOWN = "huge-pages.unknown"
    CLOCK = "clock"
    CLOCK_FUTURE = "clock.future"
    CLOCK_NAMESPACE = "clock.namespace"
    GPU = "gpu"
    GPU_NO_TORCH = "gpu.no-torch"
    GPU_UNSEEN = "gpu.unseen"
    GPU_UNUSABLE = "gpu.unusable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is as it should be, or not. remedy: what to do; empty where nothing is."""

    code: Code
    severity: Severity
    what: str
    remedy: str = ""
