"""Compiled: the budget where drafts do not compete, and every request gets the same cap."""

from __future__ import annotations

from typing import Any

from specsched_protocol.compiling import njit

from specsched_scheduler.decision._gains import num_present, sane_weight
from specsched_scheduler.decision._order import Choice
from specsched_scheduler.decision._price import Objective, price_at
from specsched_scheduler.decision.step import StepInput
from specsched_scheduler.decision.workspace import Workspace

__all__ = ["best_equal_split"]

ALL_GAINS = -1.0
"""A cut below every gain."""


@njit(cache=True, nogil=True)
def best_equal_split(
    objective: Objective, step: StepInput, max_budget: int, workspace: Workspace
) -> Any:
    """(cap per request, its Choice): StepView.equal_split. workspace.survival: of the step."""
    max_draft_tokens = step.confidence.shape[1]
    best = objective.total_weight / price_at(objective, 0)
    cap, budget, gain_sum = 0, 0, 0.0
    choice = Choice(budget, gain_sum, ALL_GAINS)
    for position in range(max_draft_tokens):
        for row in range(step.num_requests):
            present = num_present(step.samples[row], step.num_draft_tokens[row], max_draft_tokens)
            if position < present:
                gain_sum += sane_weight(step.weight[row]) * workspace.survival[row, position]
                budget += 1
        if budget > max_budget:
            break
        ratio = (objective.total_weight + gain_sum) / price_at(objective, budget)
        if ratio > best:
            best, cap = ratio, position + 1
            choice = Choice(budget, gain_sum, ALL_GAINS)
    return cap, choice
