"""Start-up measurement of what a step costs, for the scheduler's cost model."""

from specsched_executor.profiling.cost_profile import ContextSlope, CostProfile
from specsched_executor.profiling.fingerprint import fingerprint
from specsched_executor.profiling.options import ProfileOptions, default_sizes, draft_lengths
from specsched_executor.profiling.profiler import DraftRun, Progress, profile_model
from specsched_executor.profiling.store import load_profile, save_profile

__all__ = [
    "ContextSlope",
    "CostProfile",
    "DraftRun",
    "ProfileOptions",
    "Progress",
    "default_sizes",
    "draft_lengths",
    "fingerprint",
    "load_profile",
    "profile_model",
    "save_profile",
]
