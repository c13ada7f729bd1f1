"""Traces of requests, for OpenTelemetry: a span for each Generate call, in its caller's trace.

`seam` is what the gateway calls; `open_telemetry` needs the extra [otel] and is imported only where
an endpoint is configured.
"""

from __future__ import annotations

from specsched_executor.tracing.seam import (
    NoRequestTracer,
    RequestTrace,
    RequestTracer,
    open_tracer,
)

__all__ = ["NoRequestTracer", "RequestTrace", "RequestTracer", "open_tracer"]
