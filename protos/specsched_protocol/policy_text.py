"""How a policy is written and shown, everywhere: NAME or NAME(PARAMETER=VALUE, ...).

Values may be given by place, too: NAME(VALUE, ...). In a message their names are then 0, 1, ...
"""

from __future__ import annotations

import math
import re

from specsched_protocol.v1 import plan_pb2

__all__ = ["PolicyTextError", "parse_policy", "policy_arguments", "policy_text"]

_CALL = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*)\s*(?:\((?P<arguments>[^()]*)\))?\s*")
_ARGUMENT = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=)?\s*(?P<value>\S+)\s*")
_ACCEPTED = (
    "accepted: NAME, NAME(VALUE, ...) or NAME(PARAMETER=VALUE, ...), e.g. throughput or fixed(k=3)"
)


class PolicyTextError(ValueError):
    """A text that is no policy's; the message names it and what is accepted."""


def policy_text(policy: plan_pb2.PolicySpec) -> str:
    """What `parse_policy` reads: values given by place first, then parameters by name."""
    values, named = policy_arguments(policy)
    parts = [f"{value:.15g}" for value in values]
    parts += [f"{name}={named[name]:.15g}" for name in sorted(named)]
    return f"{policy.name}({', '.join(parts)})" if parts else policy.name


def policy_arguments(policy: plan_pb2.PolicySpec) -> tuple[tuple[float, ...], dict[str, float]]:
    """Values given by place, in order, and parameters given by name."""
    places = sorted((key for key in policy.parameters if key.isdecimal()), key=int)
    named = {key: value for key, value in policy.parameters.items() if not key.isdecimal()}
    return tuple(policy.parameters[key] for key in places), named


def parse_policy(text: str) -> plan_pb2.PolicySpec:
    """Read the text form. Which names and parameters there are, the scheduler judges.

    Raises PolicyTextError.
    """
    call = _CALL.fullmatch(text)
    if call is None:
        raise PolicyTextError(f"policy {text!r} cannot be read; {_ACCEPTED}")
    policy = plan_pb2.PolicySpec(name=call["name"])
    arguments = call["arguments"] or ""
    num_values = 0
    for part in arguments.split(",") if arguments.strip() else ():
        name, value = _parse_argument(text, part)
        if name is None:
            name, num_values = str(num_values), num_values + 1
        if name in policy.parameters:
            raise PolicyTextError(f"policy {text!r}: parameter {name} is given twice")
        policy.parameters[name] = value
    return policy


def _parse_argument(text: str, part: str) -> tuple[str | None, float]:
    argument = _ARGUMENT.fullmatch(part)
    try:
        value = float(argument["value"]) if argument else math.nan
    except ValueError:
        value = math.nan
    if argument is None or not math.isfinite(value):
        told = f"{part.strip()!r} is not a finite number"
        raise PolicyTextError(f"policy {text!r}: {told}; {_ACCEPTED}")
    return argument["name"], value
