"""How a policy is shown and written, everywhere."""

from __future__ import annotations

from specsched_protocol.v1 import plan_pb2

__all__ = ["policy_text"]


def policy_text(policy: plan_pb2.PolicySpec) -> str:
    """NAME or NAME(PARAMETER=VALUE, ...), as options and commands take it."""
    inside = ", ".join(f"{name}={value:.15g}" for name, value in sorted(policy.parameters.items()))
    return f"{policy.name}({inside})" if inside else policy.name
