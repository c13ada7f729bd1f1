"""The planner: answers an executor's plan requests through shared memory.

`attach_regions` maps what an executor offers; a `Planner` then decides every step on a thread that
does not hold the GIL. `warm_up` compiles all of it.
"""

from __future__ import annotations

from specsched_scheduler.planner._learned import Lesson
from specsched_scheduler.planner._tape import TapedStep
from specsched_scheduler.planner.inline import InlineFeed
from specsched_scheduler.planner.planner import Planner
from specsched_scheduler.planner.records import (
    PlannedStep,
    PlannerConfig,
    PlannerCounters,
    PolicyFailure,
    PolicySelection,
    PythonPolicy,
    RecentDecision,
)
from specsched_scheduler.planner.regions import SchedulerRegions, attach_regions
from specsched_scheduler.planner.warm import WarmUpError, warm_up

__all__ = [
    "InlineFeed",
    "Lesson",
    "PlannedStep",
    "Planner",
    "PlannerConfig",
    "PlannerCounters",
    "PolicyFailure",
    "PolicySelection",
    "PythonPolicy",
    "RecentDecision",
    "SchedulerRegions",
    "TapedStep",
    "WarmUpError",
    "attach_regions",
    "warm_up",
]
