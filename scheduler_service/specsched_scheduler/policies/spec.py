"""A policy as it is asked for, in text or in a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specsched_protocol.policy_text import (
    PolicyTextError,
    parse_policy,
    policy_arguments,
    policy_text,
)
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.errors import PolicyError

__all__ = ["PolicySpec"]


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
        try:
            return cls.from_message(parse_policy(text))
        except PolicyTextError as error:
            raise PolicyError(str(error)) from error

    @classmethod
    def from_message(cls, message: plan_pb2.PolicySpec) -> PolicySpec:
        """Values by place have the names 0, 1, ... there."""
        values, named = policy_arguments(message)
        return cls(message.name, named, values)

    def to_message(self) -> plan_pb2.PolicySpec:
        """See `from_message`."""
        by_place = {str(place): value for place, value in enumerate(self.values)}
        return plan_pb2.PolicySpec(name=self.name, parameters=by_place | dict(self.parameters))

    def __str__(self) -> str:
        return policy_text(self.to_message())
