"""The plan that the decision follows, and the length of drafts that comes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision.codes import SPEED_POLICIES, Feature, PolicyCode
from specsched_scheduler.decision.step import PolicyRule

__all__ = ["MIN_PROBE_STEPS", "DraftLengthPlan", "next_draft_tokens", "pack_plan", "unpack_plan"]

MIN_PROBE_STEPS = 2
"""Of a probe the first step teaches nothing: only then does the budget rest on confidences."""

# Numba inlines module integers; enum members it would look up.
WEIGHING_TIME = (*SPEED_POLICIES, int(PolicyCode.RATIO), int(PolicyCode.GREEDY_CAUSAL))
FIXED, OFF = int(PolicyCode.FIXED), int(PolicyCode.OFF)
DRAFT_LENGTH = int(Feature.DRAFT_LENGTH)

_SHORT = 0xFFFF


class DraftLengthPlan(NamedTuple):
    """draft_tokens: length of drafts. probe_period: steps from probe to probe, 0 for no probes.
    probe_tokens: length of the next probe's drafts. probe_steps: steps in a row that it takes."""

    draft_tokens: int
    probe_period: int
    probe_tokens: int
    probe_steps: int = MIN_PROBE_STEPS


@njit(cache=True, nogil=True)
def pack_plan(plan: Any) -> Any:
    """A plan in one word, so that it changes at once: lengths, then the probes."""
    lengths = plan.draft_tokens | plan.probe_tokens << 16
    return lengths | plan.probe_period << 32 | plan.probe_steps << 48


@njit(cache=True, nogil=True)
def unpack_plan(word: Any) -> Any:
    """The plan of `pack_plan`."""
    return DraftLengthPlan(word & _SHORT, word >> 32 & _SHORT, word >> 16 & _SHORT, word >> 48)


@njit(cache=True, nogil=True)
def next_draft_tokens(
    rule: PolicyRule, step_id: int, plan: DraftLengthPlan, max_draft_tokens: int
) -> Any:
    """Length of the drafts made at the end of a step: none that the policy cannot verify.

    The plan counts for policies that weigh tokens against time and do not leave it out.
    """
    if rule.code == OFF:
        return 0
    if rule.code == FIXED:
        return min(np.int64(rule.parameter), max_draft_tokens)
    weighs_time = rule.code in WEIGHING_TIME
    if not weighs_time or rule.left_out & DRAFT_LENGTH:
        return max_draft_tokens
    is_probe = plan.probe_period > 0 and step_id % plan.probe_period < plan.probe_steps
    return min(plan.probe_tokens if is_probe else plan.draft_tokens, max_draft_tokens)
