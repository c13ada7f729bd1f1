"""What a scheduler tells of itself: metrics, and a snapshot from which its page is drawn.

Per attachment, `AttachmentTelemetry` is fed by the learner's thread, after decisions are out.
`SchedulerTelemetry` reads it, and the planners' own counters, when somebody asks.
"""

from __future__ import annotations

from .attachment import AttachmentTelemetry
from .catalogue import CATALOGUE
from .readiness import SchedulerHealth
from .slots import Slots
from .snapshot import Snapshot, as_json
from .telemetry import SchedulerTelemetry
from .view import AttachmentView, Facts

__all__ = [
    "CATALOGUE",
    "AttachmentTelemetry",
    "AttachmentView",
    "Facts",
    "SchedulerHealth",
    "SchedulerTelemetry",
    "Slots",
    "Snapshot",
    "as_json",
]
