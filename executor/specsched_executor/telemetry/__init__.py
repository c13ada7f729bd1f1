"""What an executor tells of itself: metrics, and whether it can serve.

`telemetry` reads them from the engine, which loads torch; the rest does without.
"""

from __future__ import annotations

from .catalogue import CATALOGUE
from .readiness import ExecutorHealth
from .requests import RequestMeter

__all__ = ["CATALOGUE", "ExecutorHealth", "RequestMeter"]
