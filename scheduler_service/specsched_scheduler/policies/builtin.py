"""The policies that come with the scheduler. Each also runs inside the compiled decision."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from specsched_scheduler.decision.codes import NO_CAP, PolicyCode
from specsched_scheduler.decision.reference import StepView
from specsched_scheduler.policies.base import Parameter, PolicyChoice

__all__ = ["BUILT_IN", "Fixed", "GreedyCausal", "Off", "Ratio", "Threshold", "Throughput"]


def _verify_all(step: StepView) -> PolicyChoice:
    """Without a cost model nothing tells a good budget from a bad one."""
    return PolicyChoice(step.num_drafts())


class Throughput:
    """argmax of ratio(B) with the prefill rows charged to nobody; first maximum.

    A chunk is in the step whatever is verified. With it in the denominator every draft looks cheap
    in just the steps that are full.
    """

    code = PolicyCode.THROUGHPUT
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def decide(self, step: StepView) -> PolicyChoice:
        """Search the whole staircase: it has more than one hump."""
        if not step.has_model:
            return _verify_all(step)
        return PolicyChoice(int(np.argmax(step.ratio(step.inputs.num_prefill_tokens))))


class Ratio:
    """argmax of ratio(B) over the whole step, prefill included: the objective as published.

    DSpark, arXiv 2607.05147, section 3.2: tau * SPS(B), expected tokens times steps per second.
    """

    code = PolicyCode.RATIO
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def decide(self, step: StepView) -> PolicyChoice:
        """Search the whole staircase."""
        if not step.has_model:
            return _verify_all(step)
        return PolicyChoice(int(np.argmax(step.ratio())))


class GreedyCausal:
    """Algorithm 1 of DSpark (arXiv 2607.05147), for reference.

    Admits drafts by descending survival while the ratio of the whole step does not fall, and stops
    at the first descent; among equal ratios the smallest budget. On a staircase it stops at the
    first stair that does not pay for its first row.
    """

    code = PolicyCode.GREEDY_CAUSAL
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def decide(self, step: StepView) -> PolicyChoice:
        """Search up to the first descent."""
        if not step.has_model:
            return _verify_all(step)
        ratio = step.ratio()
        descents = np.flatnonzero(np.diff(ratio) < 0.0)
        reached = ratio[: descents[0] + 1] if len(descents) else ratio
        return PolicyChoice(int(np.argmax(reached)))


class Fixed:
    """At most k drafts of each request, all of them. Needs no cost model."""

    code = PolicyCode.FIXED
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("k", minimum=0, maximum=NO_CAP - 1, is_integer=True),
    )

    def __init__(self, k: int) -> None:
        self.k = k

    def decide(self, step: StepView) -> PolicyChoice:
        """All drafts within the cap."""
        return PolicyChoice(step.num_drafts(self.k), max_verify_len=self.k)


class Threshold:
    """As many drafts as have a survival of at least p. Needs no cost model."""

    code = PolicyCode.THRESHOLD
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("p", minimum=0.0, maximum=1.0),)

    def __init__(self, p: float) -> None:
        self.p = p

    def decide(self, step: StepView) -> PolicyChoice:
        """Count them."""
        return PolicyChoice(int((step.eligible() & (step.survival >= self.p)).sum()))


class Off:
    """No draft is verified."""

    code = PolicyCode.OFF
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def decide(self, step: StepView) -> PolicyChoice:  # noqa: ARG002 - the protocol's argument
        """Nothing."""
        return PolicyChoice(0)


BUILT_IN: dict[str, type[Throughput | Ratio | GreedyCausal | Fixed | Threshold | Off]] = {
    "throughput": Throughput,
    "ratio": Ratio,
    "greedy-causal": GreedyCausal,
    "fixed": Fixed,
    "threshold": Threshold,
    "off": Off,
}
