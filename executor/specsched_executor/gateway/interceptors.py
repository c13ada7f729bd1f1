"""Exceptions to gRPC statuses: the one place that knows both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
import structlog

from specsched_executor.core import RequestError
from specsched_executor.gateway.errors import (
    DuplicateRequestError,
    GenerationFailedError,
    NotServingError,
    OverloadedError,
    UnsupportedCallError,
)

_STATUS_OF: Final[dict[type[Exception], grpc.StatusCode]] = {
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    DuplicateRequestError: grpc.StatusCode.ALREADY_EXISTS,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotServingError: grpc.StatusCode.UNAVAILABLE,
    GenerationFailedError: grpc.StatusCode.INTERNAL,
    UnsupportedCallError: grpc.StatusCode.UNIMPLEMENTED,
}

_log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raised with the status and the message of the exception.

    An exception nobody foresaw is logged with its traceback; the client reads INTERNAL and no more.
    Calls of other services than the given ones (health, reflection) answer their own errors.
    """

    def __init__(self, *services: str) -> None:
        self._prefixes = tuple(f"/{service}/" for service in services)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(self._prefixes):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard_unary(handler.unary_unary, method),
            handler.request_deserializer,
            handler.response_serializer,
        )


def _guard_unary(behavior: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Any]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            await _end(context, error, method)

    return guarded


def _guard_stream(behavior: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., Any]:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for response in behavior(request, context):
                yield response
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            await _end(context, error, method)

    return guarded


async def _end(context: Context, error: Exception, method: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code = next((code for kind, code in _STATUS_OF.items() if isinstance(error, kind)), None)
    if code is None:
        _log.error("call_failed", method=method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the executor's log has it")
    await context.abort(code, str(error))
