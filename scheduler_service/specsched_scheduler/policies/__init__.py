"""What decides: the built-in policies, their registry and their text form."""

from specsched_scheduler.decision.errors import PolicyError, PolicyFailedError
from specsched_scheduler.decision.reference import StepView
from specsched_scheduler.policies.base import Parameter, Policy, PolicyChoice
from specsched_scheduler.policies.effect import check_effect, check_effect_in_replay
from specsched_scheduler.policies.registry import BuiltPolicy, available_policies, build_policy
from specsched_scheduler.policies.spec import PolicySpec

__all__ = [
    "BuiltPolicy",
    "Parameter",
    "Policy",
    "PolicyChoice",
    "PolicyError",
    "PolicyFailedError",
    "PolicySpec",
    "StepView",
    "available_policies",
    "build_policy",
    "check_effect",
    "check_effect_in_replay",
]
