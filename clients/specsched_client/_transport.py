"""The one seam between a client and a wire: send a request, get one response or many.

`timeout_s` None waits without limit. Every failure is one of `SpecschedError`. Leaving a stream
early (closing the generator) cancels the call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from specsched_client._address import check_target
from specsched_client._errors import error_of_status
from specsched_client._methods import Method

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

_OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # Found by the port or path alone; an HTTP proxy of the environment has no part in it.
    ("grpc.enable_http_proxy", 0),
)


class Transport(Protocol):
    """Calls that block."""

    def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """One response."""

    def stream(
        self, method: Method[Q, R], request: Q, timeout_s: float | None
    ) -> Generator[R, None, None]:
        """Responses as they come."""

    def close(self) -> None:
        """Close the connection."""


class AsyncTransport(Protocol):
    """Calls that await."""

    async def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """One response."""

    def stream(
        self, method: Method[Q, R], request: Q, timeout_s: float | None
    ) -> AsyncGenerator[R, None]:
        """Responses as they come."""

    async def close(self) -> None:
        """Close the connection."""


class GrpcTransport:
    """gRPC to `target`: host:port or unix:/path; InvalidRequestError for anything else."""

    def __init__(self, target: str) -> None:
        self._target = check_target(target)
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)

    def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """One response."""
        call = self._channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        try:
            return call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._translate(error) from error

    def stream(
        self, method: Method[Q, R], request: Q, timeout_s: float | None
    ) -> Generator[R, None, None]:
        """Responses as they come."""
        call = self._channel.unary_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )(request, timeout=timeout_s)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._translate(error) from error
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _translate(self, error: Any) -> Exception:
        return error_of_status(error.code(), error.details() or "", self._target)


class AsyncGrpcTransport:
    """The same on the running event loop."""

    def __init__(self, target: str) -> None:
        self._target = check_target(target)
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)

    async def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """One response."""
        call = self._channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of_status(error.code(), error.details() or "", self._target) from error

    async def stream(
        self, method: Method[Q, R], request: Q, timeout_s: float | None
    ) -> AsyncGenerator[R, None]:
        """Responses as they come."""
        call = self._channel.unary_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )(request, timeout=timeout_s)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_of_status(error.code(), error.details() or "", self._target) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()
