"""What can go wrong between the wire and the engine.

    GatewayError
     ├─ NotServingError          the executor starts, drains or has lost its engine
     ├─ OverloadedError          more open requests than configured
     ├─ DuplicateRequestError    a request with this id is already open
     ├─ GenerationFailedError    the engine gave the request up
     └─ UnsupportedCallError     a call of the API that this executor does not offer

A request that cannot be served as asked is `specsched_executor.core.RequestError`, one that comes
after the end of the engine `EngineStoppedError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from specsched_executor.core import RequestError
from specsched_executor.engine_stopped import EngineStoppedError


class GatewayError(Exception):
    """Base of the gateway's errors; its message is what the client reads."""


class NotServingError(GatewayError):
    """The executor takes no requests now."""


class OverloadedError(GatewayError):
    """Too many requests are open."""


class DuplicateRequestError(GatewayError):
    """A request id that is in use."""


class GenerationFailedError(GatewayError):
    """The engine ended a request with an error."""


class UnsupportedCallError(GatewayError):
    """A call of the API that is not offered."""


STATUS_OF: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    DuplicateRequestError: grpc.StatusCode.ALREADY_EXISTS,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotServingError: grpc.StatusCode.UNAVAILABLE,
    EngineStoppedError: grpc.StatusCode.UNAVAILABLE,
    GenerationFailedError: grpc.StatusCode.INTERNAL,
    UnsupportedCallError: grpc.StatusCode.UNIMPLEMENTED,
}
"""The status that a call ends with, by what it raised."""
