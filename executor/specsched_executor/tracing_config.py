"""Options that say where traces of requests go. Importable without OpenTelemetry."""

from __future__ import annotations

import importlib.util
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from specsched_protocol.settings import MissingPackageError, ProcessSettings

__all__ = ["TracingConfig"]

_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


class TracingConfig(ProcessSettings):
    """Traces of requests for an OpenTelemetry collector."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    otlp_endpoint: str | None = Field(
        None,
        description="Collector that gets a span of each request by OTLP over gRPC, e.g."
        " http://127.0.0.1:4317; https:// for TLS; none: no spans. Needs specsched[otel]",
    )
    otel_sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the requests that are traced; where the caller sent a trace context,"
        " the caller has decided",
        json_schema_extra={"unit": "share"},
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        parts = urlsplit(endpoint)
        try:
            has_port = parts.port is not None
        except ValueError:
            has_port = False
        if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port:
            raise ValueError("accepted: http://HOST:PORT or https://HOST:PORT")
        if not _can_export():
            raise MissingPackageError("needs OpenTelemetry: pip install 'specsched[otel]'")
        return endpoint

    @model_validator(mode="after")
    def _check_sample_ratio(self) -> Self:
        if self.otlp_endpoint is None and "otel_sample_ratio" in self.model_fields_set:
            raise ValueError("otel_sample_ratio has no effect without otlp_endpoint")
        return self


def _can_export() -> bool:
    """Whether all of the extra is there; the API alone comes with many a package."""
    try:
        return all(importlib.util.find_spec(name) for name in _NEEDED)
    except ModuleNotFoundError:  # a package above
        return False
