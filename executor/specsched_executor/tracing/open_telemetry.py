"""Spans of requests. Needs the extra [otel].

A span holds numbers and names: no prompt, no output, no token id, and of an error only its kind,
since a message may quote the request. Attribute names are those of OpenTelemetry's conventions for
RPC and generative AI where those have one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specsched_executor.core import GenerationRequest, TokenDelta
from specsched_executor.gateway.errors import STATUS_OF
from specsched_executor.tracing.seam import Metadata, RequestTrace

__all__ = ["OpenTelemetryTracer", "exporting_provider"]

_SERVICE: Final = "vllm.grpc.engine.VllmEngine"
_METHOD: Final = "Generate"
_EXPORT_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 3.0

_SERVER_FAULTS: Final = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
"""Statuses that make a server's span an error; others are its caller's."""


def exporting_provider(endpoint: str, sample_ratio: float) -> TracerProvider:
    """Sends spans to a collector in batches, on a thread of its own.

    One that does not answer loses spans, never requests: the queue is bounded.
    """
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource.create({SERVICE_NAME: "specsched-executor"}),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class OpenTelemetryTracer:
    """See RequestTracer. A span's parent is the `traceparent` of the call's metadata, if any."""

    def __init__(self, provider: TracerProvider, served_model_name: str) -> None:
        self._provider = provider
        self._model_name = served_model_name
        self._tracer = provider.get_tracer("specsched_executor")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, metadata: Metadata) -> RequestTrace:
        """See RequestTracer."""
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        span = self._tracer.start_span(
            f"{_SERVICE}/{_METHOD}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": _SERVICE,
                "rpc.method": _METHOD,
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": self._model_name,
            },
        )
        return _OpenTelemetryTrace(span)

    def close(self) -> None:
        """See RequestTracer."""
        # A collector that does not answer would hold up the end of the process.
        closing = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


class _OpenTelemetryTrace:
    def __init__(self, span: Span) -> None:
        self._span = span
        self._accepted_s = time.monotonic()
        self._has_tokens = False
        self._newest: dict[int, TokenDelta] = {}
        self._finish_reasons: dict[int, str] = {}

    @property
    def trace_id(self) -> str | None:
        return format_trace_id(self._span.get_span_context().trace_id)

    def accept(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        self._span.set_attributes(
            {
                "gen_ai.request.id": request.request_id,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.choice.count": sampling.n,
                "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            }
        )
        if sampling.max_tokens is not None:
            self._span.set_attribute("gen_ai.request.max_tokens", sampling.max_tokens)
        self._span.add_event("accepted")
        self._accepted_s = time.monotonic()

    def receive(self, delta: TokenDelta) -> None:
        if delta.token_ids and not self._has_tokens:
            self._has_tokens = True
            elapsed_s = time.monotonic() - self._accepted_s
            self._span.add_event("first token")
            self._span.set_attribute("gen_ai.latency.time_to_first_token", elapsed_s)
        if delta.token_ids or delta.index not in self._newest or delta.finish_reason:
            self._newest[delta.index] = delta
        if delta.finish_reason is not None:
            self._finish_reasons[delta.index] = delta.finish_reason

    def end(self, error: BaseException | None) -> None:
        newest = self._newest.values()
        self._span.set_attributes(
            {
                "gen_ai.usage.output_tokens": sum(each.num_output_tokens for each in newest),
                "specsched.num_verified_tokens": sum(each.num_draft_tokens for each in newest),
                "specsched.num_accepted_tokens": sum(each.num_accepted_tokens for each in newest),
                "gen_ai.response.finish_reasons": [
                    reason for _, reason in sorted(self._finish_reasons.items())
                ],
            }
        )
        self._set_status(error)
        self._span.end()

    def _set_status(self, error: BaseException | None) -> None:
        code = _status_of(error)
        self._span.set_attribute("rpc.grpc.status_code", code.value[0])
        if error is not None:
            self._span.set_attribute("error.type", type(error).__qualname__)
        if code in _SERVER_FAULTS:
            self._span.set_status(Status(StatusCode.ERROR, code.name))


def _status_of(error: BaseException | None) -> grpc.StatusCode:
    if error is None:
        return grpc.StatusCode.OK
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED
    return next(
        (code for kind, code in STATUS_OF.items() if isinstance(error, kind)),
        grpc.StatusCode.INTERNAL,
    )
