"""What can be wrong with a decision's inputs.

DecisionError (ValueError)
├── InvalidRequestError   a plan request or cost profile is malformed; names the field
├── PolicyError           a policy or one of its parameters is unknown or out of range
└── PolicyFailedError     a policy raised, or its answer is none
"""

from __future__ import annotations

__all__ = ["DecisionError", "InvalidRequestError", "PolicyError", "PolicyFailedError"]


class DecisionError(ValueError):
    """Base of every error that the decision raises on user input."""


class InvalidRequestError(DecisionError):
    """A field of a plan request has a value that is not accepted.

    `field` is the path from the root of the request, e.g. `requests[3].weight`.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        super().__init__(f"{field} = {value!r}: {accepted}")


class PolicyError(DecisionError):
    """A policy cannot be built; the message names the value and what is accepted."""


class PolicyFailedError(DecisionError):
    """A policy raised, or its answer is none; the message names it, what it raised and where."""
