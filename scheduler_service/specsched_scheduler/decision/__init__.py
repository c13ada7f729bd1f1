"""The decision: how many draft tokens of a step are verified. Pure functions of arrays.

`decide` answers from Python for any policy; `fast.decide_step` is the compiled form for the planner
loop, imported from its own module because it needs numba.
"""

from specsched_scheduler.decision.codes import (
    NO_CAP,
    DecisionFlags,
    Feature,
    ModelState,
    PolicyCode,
)
from specsched_scheduler.decision.cost import ContextCost, CostModel, CostTable
from specsched_scheduler.decision.decide import decide
from specsched_scheduler.decision.errors import (
    DecisionError,
    InvalidRequestError,
    PolicyError,
    PolicyFailedError,
)
from specsched_scheduler.decision.inputs import DecisionInputs, DecisionOutcome
from specsched_scheduler.decision.reference import StepView
from specsched_scheduler.decision.workspace import RunningMean, new_running_mean

__all__ = [
    "NO_CAP",
    "ContextCost",
    "CostModel",
    "CostTable",
    "DecisionError",
    "DecisionFlags",
    "DecisionInputs",
    "DecisionOutcome",
    "Feature",
    "InvalidRequestError",
    "ModelState",
    "PolicyCode",
    "PolicyError",
    "PolicyFailedError",
    "RunningMean",
    "StepView",
    "decide",
    "new_running_mean",
]
