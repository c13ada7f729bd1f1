"""What an executor tells of itself: metrics, and whether it can serve."""

from __future__ import annotations

from .catalogue import CATALOGUE
from .readiness import ExecutorHealth
from .requests import RequestMeter
from .telemetry import ExecutorTelemetry, Links

__all__ = ["CATALOGUE", "ExecutorHealth", "ExecutorTelemetry", "Links", "RequestMeter"]
