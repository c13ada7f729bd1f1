"""Whether a policy can do what its parameters say where it is to be used."""

from __future__ import annotations

from specsched_scheduler.decision.codes import Feature
from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.policies.builtin import Fixed
from specsched_scheduler.policies.features import name_of
from specsched_scheduler.policies.registry import BuiltPolicy

__all__ = ["check_effect", "check_effect_in_replay"]

_REPLAYED = Feature.RANKING | Feature.CONTEXT | Feature.PRIOR
"""What a decision on recorded steps comes out otherwise by."""


def check_effect(policy: BuiltPolicy, max_draft_tokens: int, who: str) -> None:
    """Raise PolicyError for a cap per request above `max_draft_tokens`, the most that `who` drafts.

    who: as in "k = 9 is more than `who` drafts".
    """
    if isinstance(policy.policy, Fixed) and policy.policy.k > max_draft_tokens:
        raise PolicyError(
            f"policy {policy}: k = {policy.policy.k} is more than {who} drafts;"
            f" accepted: 0 to {max_draft_tokens}"
        )


def check_effect_in_replay(policy: BuiltPolicy) -> None:
    """Raise PolicyError where a policy leaves out what recorded steps have or lack already."""
    without_effect = Feature(policy.rule.left_out) & ~_REPLAYED
    if without_effect:
        names, accepted = (_names(each) for each in (without_effect, _REPLAYED))
        raise PolicyError(
            f"policy {policy}: to leave out {names} changes no replay; accepted: {accepted}"
        )


def _names(features: Feature) -> str:
    return ", ".join(name_of(each) for each in features)
