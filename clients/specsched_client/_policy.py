"""How a policy is written: NAME or NAME(PARAMETER=NUMBER, ...)."""

from __future__ import annotations

import re

from specsched_protocol.v1 import plan_pb2

from specsched_client._errors import InvalidRequestError

_SPEC = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*")
_FORM = "NAME or NAME(PARAMETER=NUMBER, ...), e.g. throughput or fixed(k=3)"


def to_policy_spec(policy: str | plan_pb2.PolicySpec) -> plan_pb2.PolicySpec:
    """Read a policy. Raises InvalidRequestError for text of another form.

    Which names and parameters there are, the scheduler judges.
    """
    if isinstance(policy, plan_pb2.PolicySpec):
        return policy
    match = _SPEC.fullmatch(policy)
    if match is None:
        raise InvalidRequestError(f"policy {policy!r}; accepted: {_FORM}")
    name, inside = match.groups()
    parts = [part for part in (inside or "").split(",") if part.strip()]
    return plan_pb2.PolicySpec(name=name, parameters=dict(_parameter(policy, p) for p in parts))


def policy_text(policy: plan_pb2.PolicySpec) -> str:
    """The policy as `to_policy_spec` reads it."""
    inside = ", ".join(f"{name}={value:g}" for name, value in sorted(policy.parameters.items()))
    return f"{policy.name}({inside})" if inside else policy.name


def _parameter(policy: str, text: str) -> tuple[str, float]:
    match = _PARAMETER.fullmatch(text)
    try:
        if match is not None:
            return match[1], float(match[2])
    except ValueError:
        pass
    raise InvalidRequestError(
        f"policy {policy!r}: {text.strip()!r} is no parameter; accepted: {_FORM}"
    )
