"""The scheduler as a gRPC service: executors attach to it, operators ask and steer it."""

from __future__ import annotations

from .errors import ServiceError, SocketInUseError
from .server import SERVICE_NAME, SchedulerServer

__all__ = ["SERVICE_NAME", "SchedulerServer", "ServiceError", "SocketInUseError"]
