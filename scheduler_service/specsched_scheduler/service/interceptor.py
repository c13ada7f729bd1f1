"""Turns exceptions of the servicer into gRPC statuses, in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from specsched_scheduler.decision.errors import DecisionError

from .errors import (
    InvalidMessageError,
    NotReadyError,
    PeerRefusedError,
    TooManyAttachmentsError,
)

__all__ = ["StatusInterceptor"]

_STATUS_OF: dict[type[Exception], grpc.StatusCode] = {
    InvalidMessageError: grpc.StatusCode.INVALID_ARGUMENT,
    DecisionError: grpc.StatusCode.INVALID_ARGUMENT,
    PeerRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    TooManyAttachmentsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
}

_log = structlog.get_logger(__name__)

Handler = Any  # grpc.RpcMethodHandler, whose members grpc leaves untyped


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Maps the errors of `service.errors` to their status; any other is logged and INTERNAL.

    Only calls of `service` are wrapped: health and reflection answer their own errors.
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(self._prefix):
            return handler
        if handler.unary_unary:
            return _rebuild(handler, "unary_unary", _guard_unary(handler.unary_unary, method))
        for kind in ("unary_stream", "stream_stream"):
            if getattr(handler, kind):
                return _rebuild(handler, kind, _guard_stream(getattr(handler, kind), method))
        return handler


def _rebuild(handler: Handler, kind: str, behavior: Callable[..., Any]) -> Handler:
    make: Callable[..., Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(behavior, handler.request_deserializer, handler.response_serializer)


def _guard_unary(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - the process boundary
            await _abort(context, error, method)

    return guarded


def _guard_stream(behavior: Callable[..., Any], method: str) -> Callable[..., Any]:
    async def guarded(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        try:
            async for response in behavior(request, context):
                yield response
        except Exception as error:  # noqa: BLE001 - the process boundary
            await _abort(context, error, method)

    return guarded


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str
) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    for error_type, status in _STATUS_OF.items():
        if isinstance(error, error_type):
            _log.warning("call refused", method=method, status=status.name, reason=str(error))
            await context.abort(status, str(error))
    _log.error("call failed", method=method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error, see the scheduler's log")
