"""Exceptions of a servicer to gRPC statuses, the same way in every server of the project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from itertools import accumulate, takewhile
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

__all__ = ["StatusInterceptor"]

_log = structlog.get_logger(__name__)

_MAX_BYTES = 6000
"""Of a message as it travels. Beyond 8 KiB gRPC drops a trailer by chance, beyond 16 KiB always."""

_Handler = Any  # grpc.RpcMethodHandler, whose members grpc leaves untyped
_Context = grpc.aio.ServicerContext[Any, Any]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call whose handler raised with the status and the message of the exception.

    services: full names; calls of others (health, reflection) answer their own errors. status_of:
    exception type -> status, the first one that fits. An exception nobody foresaw is logged with
    its traceback; the peer reads INTERNAL and, instead of its text, where that log is: `log_owner`.
    logs_refusals: log the others too; not where peers are many and each reads its own mistakes.
    """

    def __init__(
        self,
        services: Collection[str],
        status_of: Mapping[type[Exception], grpc.StatusCode],
        *,
        log_owner: str,
        logs_refusals: bool,
    ) -> None:
        self._prefixes = tuple(f"/{service}/" for service in services)
        self._status_of = dict(status_of)
        self._logs_refusals = logs_refusals
        self._internal = f"internal error, see the {log_owner}'s log"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(self._prefixes):
            return handler
        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        kind = next(kind for kind in kinds if getattr(handler, kind))
        guard = self._guard_stream if handler.response_streaming else self._guard_unary
        make: Callable[..., _Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
        behavior, parse = getattr(handler, kind), handler.request_deserializer
        if not handler.request_streaming:  # what gRPC cannot parse itself would end with UNKNOWN
            behavior, parse = _parsing(behavior, parse), None
        return make(guard(behavior, method), parse, handler.response_serializer)

    def _guard_unary(self, behavior: Callable[..., Awaitable[Any]], method: str) -> Any:
        async def guarded(request: Any, context: _Context) -> Any:
            try:
                return await behavior(request, context)
            except Exception as error:  # noqa: BLE001 - the boundary of the process
                await self._end(context, error, method)

        return guarded

    def _guard_stream(self, behavior: Callable[..., AsyncIterator[Any]], method: str) -> Any:
        async def guarded(request: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                async for response in behavior(request, context):
                    yield response
            except Exception as error:  # noqa: BLE001 - the boundary of the process
                await self._end(context, error, method)

        return guarded

    async def _end(self, context: _Context, error: Exception, method: str) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        status_of = {**self._status_of, DecodeError: grpc.StatusCode.INVALID_ARGUMENT}
        code = next((c for kind, c in status_of.items() if isinstance(error, kind)), None)
        if code is None:
            _log.error("call failed", method=method, exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, self._internal)
        reason = _told(error)
        if self._logs_refusals:
            _log.warning("call refused", method=method, status=code.name, reason=reason)
        await context.abort(code, reason)


def _parsing(behavior: Callable[..., Any], parse: Callable[[bytes], Any] | None) -> Any:
    """`behavior` for a request that is still bytes."""
    if parse is None:
        return behavior
    return lambda raw, context: behavior(parse(raw), context)


def _told(error: Exception) -> str:
    """The message, in a length that fits a status: gRPC drops a call whose trailer is too long."""
    text = str(error)
    if sum(map(_encoded_bytes, text)) <= _MAX_BYTES:
        return text
    head, tail = _fitting(text), _fitting(reversed(text))
    return f"{text[:head]} ... ({len(text)} letters) ... {text[-tail:]}"


def _fitting(letters: Iterable[str]) -> int:
    """How many of the first letters half the message has room for."""
    sizes = accumulate(map(_encoded_bytes, letters))
    return sum(1 for _ in takewhile(lambda size: size <= _MAX_BYTES // 2, sizes))


def _encoded_bytes(letter: str) -> int:
    """Of a letter in `grpc-message`: visible ASCII as it is, every other byte as %XX."""
    return 1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode())
