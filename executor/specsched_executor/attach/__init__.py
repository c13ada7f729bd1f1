"""The executor's side of the control plane: finds schedulers, attaches, follows their life."""

from __future__ import annotations

from .election import SwitchReason
from .endpoints import SchedulerEndpoint
from .info import AttachmentInfo, AttachTotals
from .manager import AttachManager
from .seams import AttachConfig, ExecutorFacts, LaneHost
from .supervision import SupervisionConfig

__all__ = [
    "AttachConfig",
    "AttachManager",
    "AttachTotals",
    "AttachmentInfo",
    "ExecutorFacts",
    "LaneHost",
    "SchedulerEndpoint",
    "SupervisionConfig",
    "SwitchReason",
]
