"""What can go wrong for a client.

SpecschedError
 ├─ InvalidRequestError      (ValueError)    refused here or by the server; mend the request
 ├─ ConnectionFailedError    (ConnectionError)  nobody serves at the target, or not now
 ├─ DeadlineExceededError    (TimeoutError)  no end within `timeout_s`
 ├─ OverloadedError                          the server takes no more requests now; try later
 ├─ UnsupportedError                         the server does not offer the call
 ├─ ServerError                              the server failed, or answered nonsense
 └─ MissingDependencyError   (ImportError)   an optional package is not installed
"""

from __future__ import annotations

from typing import Final

import grpc
from specsched_protocol.unreachable import Unreachable


class SpecschedError(Exception):
    """Base of all errors that this package raises on purpose."""


class InvalidRequestError(SpecschedError, ValueError):
    """A request that cannot be served as asked; the message names the value."""


class NoChatTemplateError(InvalidRequestError):
    """Messages for a model without a chat template; caught here to name the option to use."""

    def __init__(self) -> None:
        super().__init__("the model has no chat template; give the prompt as text")


class ConnectionFailedError(SpecschedError, ConnectionError):
    """Nobody serves at the target, or not now."""


class DeadlineExceededError(SpecschedError, TimeoutError):
    """The call did not end in time."""


class OverloadedError(SpecschedError):
    """The server takes no more requests now."""


class UnsupportedError(SpecschedError):
    """The server does not offer the call."""


class ServerError(SpecschedError):
    """The server failed, or its answer cannot be understood."""


class MissingDependencyError(SpecschedError, ImportError):
    """An optional package is not installed; the message says how to get it."""


_ERROR_OF: Final[dict[grpc.StatusCode, type[SpecschedError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.UNAVAILABLE: ConnectionFailedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
}

_ACCEPTED_TARGETS: Final = "host:port of a known host, [IPv6]:port or unix:/path/of/a.sock"
_NO_TARGET: Final = ("Failed to create channel to ", "Illegal status code from resolver")
"""How gRPC's core begins where an address with a scheme is none, such as too long a path."""


def error_of_status(code: grpc.StatusCode, details: str, target: str) -> SpecschedError:
    """The exception for a call to `target` that ended with a status other than OK."""
    kind = _ERROR_OF.get(code, ServerError)
    if kind is DeadlineExceededError:
        return DeadlineExceededError(f"{target} did not finish in time")
    if details.startswith(_NO_TARGET):
        return InvalidRequestError(
            f"target {target!r} is no address; accepted: {_ACCEPTED_TARGETS}"
        )
    if kind is InvalidRequestError:
        return InvalidRequestError(details)
    if kind is ConnectionFailedError and (why := Unreachable.of_details(details)):
        accepted = f"; accepted: {_ACCEPTED_TARGETS}" if why.is_unresolved else ""
        return ConnectionFailedError(f"nobody answers at {target} ({why.reason}){accepted}")
    return kind(f"{target}: {details or code.name}")
