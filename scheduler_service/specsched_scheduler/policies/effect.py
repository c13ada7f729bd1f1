"""Whether a policy can do what its parameters say, given how much is drafted."""

from __future__ import annotations

from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.policies.builtin import Fixed
from specsched_scheduler.policies.registry import BuiltPolicy

__all__ = ["check_effect"]


def check_effect(policy: BuiltPolicy, max_draft_tokens: int, who: str) -> None:
    """Raise PolicyError for a cap per request above `max_draft_tokens`, the most that `who` drafts.

    who: as in "k = 9 is more than `who` drafts".
    """
    if isinstance(policy.policy, Fixed) and policy.policy.k > max_draft_tokens:
        raise PolicyError(
            f"policy {policy}: k = {policy.policy.k} is more than {who} drafts;"
            f" accepted: 0 to {max_draft_tokens}"
        )
