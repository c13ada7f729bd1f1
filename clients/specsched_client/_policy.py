"""How a policy is written: NAME, NAME(VALUE, ...) or NAME(PARAMETER=VALUE, ...)."""

from __future__ import annotations

import math
import re

from specsched_protocol.v1 import plan_pb2

from specsched_client._errors import InvalidRequestError

_SPEC = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*)\s*(?:\((?P<inside>[^()]*)\))?\s*")
_PARAMETER = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=)?\s*(?P<value>\S+)\s*")
_FORM = "NAME, NAME(VALUE, ...) or NAME(PARAMETER=VALUE, ...), e.g. throughput or fixed(k=3)"


def to_policy_spec(policy: str | plan_pb2.PolicySpec) -> plan_pb2.PolicySpec:
    """Read a policy. Raises InvalidRequestError for text of another form.

    Which names and parameters there are, the scheduler judges.
    """
    if isinstance(policy, plan_pb2.PolicySpec):
        return policy
    match = _SPEC.fullmatch(policy)
    if match is None:
        raise InvalidRequestError(f"policy {policy!r}; accepted: {_FORM}")
    spec = plan_pb2.PolicySpec(name=match["name"])
    inside = match["inside"] or ""
    for place, part in enumerate(inside.split(",") if inside.strip() else ()):
        name, value = _parameter(policy, part)
        key = name or str(place)
        if key in spec.parameters:
            raise InvalidRequestError(f"policy {policy!r}: {name} is given twice")
        spec.parameters[key] = value
    return spec


def _parameter(policy: str, text: str) -> tuple[str | None, float]:
    match = _PARAMETER.fullmatch(text)
    try:
        value = float(match["value"]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise InvalidRequestError(f"policy {policy!r}: cannot read {text!r}; accepted: {_FORM}")
    return match["name"], value
