"""What the gateway tells of a request while it serves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from specsched_executor.core import GenerationRequest, TokenDelta
from specsched_executor.tracing_config import TracingConfig

__all__ = ["NoRequestTracer", "RequestTrace", "RequestTracer", "open_tracer"]

Metadata = Iterable[tuple[str, str | bytes]]


class RequestTrace(Protocol):
    """One call. Its methods are called in this order, on one event loop."""

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits, for the log; None where nothing is traced."""

    def accept(self, request: GenerationRequest) -> None:
        """The call asks for something that can be served."""

    def receive(self, delta: TokenDelta) -> None:
        """Something came of it."""

    def end(self, error: BaseException | None) -> None:
        """The call is over; error: what ended it early."""


class RequestTracer(Protocol):
    """Begins traces. Thread-safe."""

    def begin(self, metadata: Metadata) -> RequestTrace:
        """A call with this gRPC metadata, which may name the trace of its caller."""

    def close(self) -> None:
        """Send what is left, for a bounded time."""


class NoRequestTracer:
    """Traces nothing."""

    def begin(self, metadata: Metadata) -> RequestTrace:  # noqa: ARG002
        """See RequestTracer."""
        return _NoRequestTrace()

    def close(self) -> None:
        """See RequestTracer."""


class _NoRequestTrace:
    @property
    def trace_id(self) -> str | None:
        return None

    def accept(self, request: GenerationRequest) -> None:
        pass

    def receive(self, delta: TokenDelta) -> None:
        pass

    def end(self, error: BaseException | None) -> None:
        pass


def open_tracer(config: TracingConfig, served_model_name: str) -> RequestTracer:
    """The tracer that the options ask for."""
    if config.otlp_endpoint is None:
        return NoRequestTracer()
    from specsched_executor.tracing.open_telemetry import OpenTelemetryTracer, exporting_provider

    provider = exporting_provider(config.otlp_endpoint, config.otel_sample_ratio)
    return OpenTelemetryTracer(provider, served_model_name)
