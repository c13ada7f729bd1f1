"""One Generate call as logs and traces see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import structlog

from specsched_executor.core import GenerationRequest, TokenDelta
from specsched_executor.tracing.seam import RequestTrace, RequestTracer

__all__ = ["ObservedCall", "observed_call"]

_log = structlog.get_logger(__name__)


class ObservedCall:
    """Passes on what happens. Every line logged during the call names its request."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace

    def accept(self, request: GenerationRequest) -> None:
        """The call asks for something that can be served."""
        # Bound for good: the context ends with the call, which has a task of its own. A stream
        # that its client left may be closed in another one, where nothing could be reset.
        structlog.contextvars.bind_contextvars(request_id=request.request_id)
        if self._trace.trace_id is not None:
            structlog.contextvars.bind_contextvars(trace_id=self._trace.trace_id)
        _log.debug("request accepted", prompt_tokens=len(request.prompt_token_ids))
        self._trace.accept(request)

    def receive(self, delta: TokenDelta) -> None:
        """Something came of it."""
        self._trace.receive(delta)
        if delta.finish_reason is not None:
            _log.debug(
                "request finished",
                output=delta.index,
                finish_reason=delta.finish_reason,
                output_tokens=delta.num_output_tokens,
                accepted_tokens=delta.num_accepted_tokens,
            )


@contextlib.contextmanager
def observed_call(tracer: RequestTracer, context: Any) -> Iterator[ObservedCall]:
    """Observe the call of a gRPC context, whose metadata may name its caller's trace."""
    trace = tracer.begin(context.invocation_metadata() or ())
    error: BaseException | None = None
    try:
        yield ObservedCall(trace)
    except BaseException as raised:
        error = raised
        raise
    finally:
        trace.end(error)
