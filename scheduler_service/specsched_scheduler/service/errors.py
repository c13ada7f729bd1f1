"""Errors of the scheduler's control plane.

ServiceError
├── InvalidMessageError      a peer sent a message that makes no sense
├── PeerRefusedError         a peer this scheduler cannot work with (protocol, layout, hand-over)
├── TooManyAttachmentsError  no room for one more executor
├── NotReadyError            the scheduler is stopping
├── SocketInUseError         another scheduler owns the socket (start-up, never sent to a peer)
└── ListenError              the TCP address cannot be bound (start-up too)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from specsched_scheduler.decision.errors import DecisionError, PolicyFailedError
from specsched_scheduler.learning.errors import LearningError

__all__ = [
    "STATUS_OF",
    "InvalidMessageError",
    "ListenError",
    "NotReadyError",
    "PeerRefusedError",
    "ServiceError",
    "SocketInUseError",
    "TooManyAttachmentsError",
]


class ServiceError(Exception):
    """Base of the errors below."""


class InvalidMessageError(ServiceError):
    """A message with a missing, impossible or unexpected part; the text names it."""


class PeerRefusedError(ServiceError):
    """The peer is sound but cannot be served; the text names both sides' values."""


class TooManyAttachmentsError(ServiceError):
    """`max_attachments` executors are attached already."""


class NotReadyError(ServiceError):
    """The scheduler is shutting down."""


class SocketInUseError(ServiceError):
    """A live scheduler serves on the wanted socket."""


class ListenError(ServiceError):
    """The TCP address is taken, or is none of this machine."""


STATUS_OF: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    InvalidMessageError: grpc.StatusCode.INVALID_ARGUMENT,
    PolicyFailedError: grpc.StatusCode.INTERNAL,
    DecisionError: grpc.StatusCode.INVALID_ARGUMENT,
    LearningError: grpc.StatusCode.INVALID_ARGUMENT,
    PeerRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    TooManyAttachmentsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
}
"""The status that a call ends with, by what it raised."""
