"""What a policy is. A third party writes one class and declares it as an entry point:

    [project.entry-points."specsched.policies"]
    half = "my_package:Half"

    class Half:
        parameters = (Parameter("share", default=0.5, minimum=0.0, maximum=1.0),)

        def __init__(self, share: float) -> None:
            self.share = share

        def decide(self, step: StepView) -> PolicyChoice:
            return PolicyChoice(budget=int(self.share * step.num_drafts()))

It is then chosen like any other: `half`, `half(0.3)` or `half(share=0.3)`. The class is imported
when it is first asked for, and built anew for each policy change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.decision.reference import StepView

__all__ = ["Parameter", "Policy", "PolicyChoice", "PolicyFactory"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a policy takes.

    default: None makes it required. minimum, maximum: both included. is_integer: no fraction.
    is_quiet: left out of the policy's text where it has its default.
    """

    name: str
    default: float | None = None
    minimum: float = float("-inf")
    maximum: float = float("inf")
    is_integer: bool = False
    is_quiet: bool = False

    def check(self, policy: str, value: float) -> float:
        """The value as the policy gets it; PolicyError where it is out of range."""
        in_range = self.minimum <= value <= self.maximum
        if not in_range or (self.is_integer and value != int(value)):
            kind = "an integer" if self.is_integer else "a number"
            raise PolicyError(
                f"policy {policy}: {self.name} = {value:g} must be {kind} "
                f"in {_shown(self.minimum)}..{_shown(self.maximum)}"
            )
        return int(value) if self.is_integer else float(value)


def _shown(bound: float) -> str:
    """A bound without an exponent where it is a whole number."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What a policy decides for one step.

    budget: B >= 0; more than the drafts present or than the executor's cap is cut down to them.
    max_verify_len: cap per request beside B, None for none. is_out_of_bound: the policy has a bound
    that no budget keeps in this step.
    """

    budget: int
    max_verify_len: int | None = None
    is_out_of_bound: bool = False


class Policy(Protocol):
    """Decides steps. Pure: the same step gives the same choice; nothing blocks."""

    def decide(self, step: StepView) -> PolicyChoice:
        """The budget of one step."""
        ...


class PolicyFactory(Protocol):
    """A policy class. Its parameters are passed by name, checked and with defaults filled in."""

    parameters: ClassVar[tuple[Parameter, ...]]

    def __call__(self, **parameters: Any) -> Policy:
        """Build the policy."""
        ...
