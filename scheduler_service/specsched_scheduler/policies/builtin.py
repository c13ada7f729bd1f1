"""The policies that come with the scheduler. Each also runs inside the compiled decision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
from specsched_protocol.shm.layout import MAX_DRAFT_TOKENS

from specsched_scheduler.decision.codes import SPEED_POLICIES, Feature, PolicyCode
from specsched_scheduler.decision.cost import FEW_REQUESTS, LEAD_ALONE
from specsched_scheduler.decision.errors import PolicyError
from specsched_scheduler.decision.reference import StepView
from specsched_scheduler.decision.step import PolicyRule
from specsched_scheduler.policies.base import Parameter, PolicyChoice
from specsched_scheduler.policies.features import FEATURES, left_out

__all__ = ["BUILT_IN", "BuiltIn"]

_MS_PER_SECOND = 1e3
_FAIRNESS = Parameter("fairness", default=0.0, minimum=0.0, maximum=4.0, is_quiet=True)


def _verify_all(step: StepView) -> PolicyChoice:
    """Without a cost model nothing tells a good budget from a bad one."""
    return PolicyChoice(step.num_drafts())


def _fastest(
    step: StepView, rule: PolicyRule, num_left_out: int = 0, max_budget: int | None = None
) -> PolicyChoice:
    """The first maximum of the ratio. num_left_out: prefill rows charged to nobody. max_budget:
    None for the step's reach. Searches the whole staircase: it has more than one hump.

    Of a few requests SPEED_POLICIES take all drafts unless less is clearly better: LEAD_ALONE."""
    reach = step.reach if max_budget is None else max_budget
    if rule.left_out & Feature.RANKING:
        cap, budget = step.equal_split(reach, num_left_out)
        return PolicyChoice(budget, max_verify_len=cap)
    ratio = step.ratio(num_left_out)[: reach + 1]
    best = int(np.argmax(ratio))
    if rule.code in SPEED_POLICIES and 0 < step.num_sampling <= FEW_REQUESTS:
        lead = 1.0 + LEAD_ALONE / step.num_sampling
        best = best if ratio[best] > ratio[-1] * lead else len(ratio) - 1
    return PolicyChoice(best)


class Throughput:
    """argmax of ratio(B) with the prefill rows charged to nobody; first maximum.

    A chunk is in the step whatever is verified. With it in the denominator every draft looks cheap
    in just the steps that are full. Of a few requests all drafts are taken unless less is better by
    LEAD_ALONE / N, since confidences are those of the drafts before.

    fairness: alpha of specsched_protocol.fairness. It multiplies the weights before they come here.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (_FAIRNESS, *FEATURES)

    def __init__(self, fairness: float, **features: int) -> None:
        self.rule = PolicyRule(
            int(PolicyCode.THROUGHPUT), fairness=fairness, left_out=left_out(features)
        )

    def decide(self, step: StepView) -> PolicyChoice:
        """Search the whole staircase."""
        if not step.has_model:
            return _verify_all(step)
        return _fastest(step, self.rule, step.inputs.num_prefill_tokens)


class Ratio:
    """argmax of ratio(B) over the whole step, prefill included: the objective as published.

    DSpark, arXiv 2607.05147, section 3.2: tau * SPS(B), expected tokens times steps per second.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = FEATURES

    def __init__(self, **features: int) -> None:
        self.rule = PolicyRule(int(PolicyCode.RATIO), left_out=left_out(features))

    def decide(self, step: StepView) -> PolicyChoice:
        """Search the whole staircase."""
        if not step.has_model:
            return _verify_all(step)
        return _fastest(step, self.rule)


class GreedyCausal:
    """Algorithm 1 of DSpark (arXiv 2607.05147), for reference.

    Admits drafts by descending survival while the ratio of the whole step does not fall, and stops
    at the first descent; among equal ratios the smallest budget. On a staircase it stops at the
    first stair that does not pay for its first row.
    """

    rule = PolicyRule(int(PolicyCode.GREEDY_CAUSAL))
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

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("k", minimum=0, maximum=MAX_DRAFT_TOKENS, is_integer=True),
    )

    def __init__(self, k: int) -> None:
        self.k = k
        self.rule = PolicyRule(int(PolicyCode.FIXED), float(k))

    def decide(self, step: StepView) -> PolicyChoice:
        """All drafts within the cap."""
        return PolicyChoice(step.num_drafts(self.k), max_verify_len=self.k)


class Threshold:
    """As many drafts as have a survival of at least p. Needs no cost model."""

    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("p", minimum=0.0, maximum=1.0),)

    def __init__(self, p: float) -> None:
        self.p = p
        self.rule = PolicyRule(int(PolicyCode.THRESHOLD), p)

    def decide(self, step: StepView) -> PolicyChoice:
        """Count them."""
        return PolicyChoice(int((step.eligible() & (step.survival >= self.p)).sum()))


class Slo:
    """Most throughput, by the same ratio, within a bound on the time of a step.

    step_ms: no step is predicted to last longer, prefill included; where even the step without
    drafts would, B = 0. min_tokens_per_second: of each request. Every request gets at least one
    token a step, so that steps of 1000 / min_tokens_per_second ms keep the floor whatever is
    accepted; where the step without drafts lasts longer, only accepted drafts can reach the floor,
    and it gives way to the ratio. 0 binds nothing; either must be given. Predictions stay below a
    bound by BOUND_MARGIN noise ratios of the cost model.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("step_ms", default=0.0, minimum=0.0, maximum=1e6),
        Parameter("min_tokens_per_second", default=0.0, minimum=0.0, maximum=1e6, is_quiet=True),
        _FAIRNESS,
        *FEATURES,
    )

    def __init__(
        self, step_ms: float, min_tokens_per_second: float, fairness: float, **features: int
    ) -> None:
        if step_ms == 0.0 and min_tokens_per_second == 0.0:
            raise PolicyError(
                "policy slo: step_ms = 0 and min_tokens_per_second = 0 bind nothing; accepted: one"
                " above 0, e.g. slo(step_ms=20)"
            )
        self.rule = PolicyRule(
            int(PolicyCode.SLO),
            max_step_ms=step_ms or math.inf,
            min_tokens_per_second=min_tokens_per_second,
            fairness=fairness,
            left_out=left_out(features),
        )

    def decide(self, step: StepView) -> PolicyChoice:
        """Search the staircase up to the bound."""
        if not step.has_model:
            return _verify_all(step)
        reach, is_out_of_bound = self._reach(step)
        choice = _fastest(step, self.rule, step.inputs.num_prefill_tokens, reach)
        return replace(choice, is_out_of_bound=is_out_of_bound)

    def _reach(self, step: StepView) -> tuple[int, bool]:
        """(largest B within the bounds that can be kept, whether one of them cannot)."""
        reach = step.within(self.rule.max_step_ms)
        if reach is None:
            return 0, True
        floor = self.rule.min_tokens_per_second
        at_floor = step.within(_MS_PER_SECOND / floor) if floor > 0.0 else reach
        return (reach, True) if at_floor is None else (min(reach, at_floor), False)


class Off:
    """No draft is verified."""

    rule = PolicyRule(int(PolicyCode.OFF))
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def decide(self, step: StepView) -> PolicyChoice:  # noqa: ARG002 - the protocol's argument
        """Nothing."""
        return PolicyChoice(0)


BuiltIn = Throughput | Slo | Ratio | GreedyCausal | Fixed | Threshold | Off
"""Each has a `rule`: the same policy for the compiled decision."""

BUILT_IN: dict[str, type[BuiltIn]] = {
    "throughput": Throughput,
    "ratio": Ratio,
    "greedy-causal": GreedyCausal,
    "fixed": Fixed,
    "threshold": Threshold,
    "off": Off,
    "slo": Slo,
}
