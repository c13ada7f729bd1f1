"""The text form of a policy: `throughput`, `fixed(3)`, `threshold(p=0.3)`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specsched_scheduler.decision.errors import PolicyError

__all__ = ["PolicySpec"]

_CALL = re.compile(r"\s*(?P<name>[A-Za-z][\w.-]*)\s*(?:\((?P<arguments>[^()]*)\))?\s*")
_ARGUMENT = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=)?\s*(?P<value>\S+)\s*")
_ACCEPTED = "accepted: NAME, NAME(value) or NAME(parameter=value, ...)"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's name and parameters, not yet checked against what the policy takes.

    values: given by place, in the order that the policy declares. parameters: given by name.
    """

    name: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    values: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """Read the text form; PolicyError names what cannot be read."""
        call = _CALL.fullmatch(text)
        if call is None:
            raise PolicyError(f"policy {text!r} cannot be read; {_ACCEPTED}")
        values: list[float] = []
        parameters: dict[str, float] = {}
        arguments = call["arguments"] or ""
        for part in arguments.split(",") if arguments.strip() else ():
            name, value = _parse_argument(text, part)
            if name is None:
                values.append(value)
            elif name in parameters:
                raise PolicyError(f"policy {text!r}: parameter {name} is given twice")
            else:
                parameters[name] = value
        return cls(call["name"], parameters, tuple(values))

    def __str__(self) -> str:
        parts = [f"{value:.15g}" for value in self.values]
        if len(self.parameters) == 1 and not parts:
            parts = [f"{value:.15g}" for value in self.parameters.values()]
        else:
            parts += [f"{name}={value:.15g}" for name, value in self.parameters.items()]
        return f"{self.name}({', '.join(parts)})" if parts else self.name


def _parse_argument(text: str, part: str) -> tuple[str | None, float]:
    argument = _ARGUMENT.fullmatch(part)
    try:
        value = float(argument["value"]) if argument else math.nan
    except ValueError:
        value = math.nan
    if argument is None or not math.isfinite(value):
        raise PolicyError(f"policy {text!r}: {part.strip()!r} is not a finite number; {_ACCEPTED}")
    return argument["name"], value
