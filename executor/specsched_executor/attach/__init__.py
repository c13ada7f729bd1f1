"""The executor's side of the control plane: finds schedulers, attaches, follows their life."""

from __future__ import annotations

from .endpoints import SchedulerEndpoint
from .manager import AttachManager, AttachmentInfo
from .seams import AttachConfig, ExecutorFacts, LaneHost
from .supervision import SupervisionConfig

__all__ = [
    "AttachConfig",
    "AttachManager",
    "AttachmentInfo",
    "ExecutorFacts",
    "LaneHost",
    "SchedulerEndpoint",
    "SupervisionConfig",
]
