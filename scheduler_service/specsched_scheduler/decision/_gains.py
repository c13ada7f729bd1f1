"""Compiled: from confidences to gains (weight * survival), with repair and prior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision._order import Choice
from specsched_scheduler.decision.codes import Feature
from specsched_scheduler.decision.step import StepInput
from specsched_scheduler.decision.workspace import MEMORY_SAMPLES, RunningMean, Workspace

__all__ = [
    "Batch",
    "Gains",
    "collect_gains",
    "num_present",
    "sane_weight",
    "sum_admitted_survival",
    "summarise_batch",
]

PRIOR = int(Feature.PRIOR)
"""Numba inlines module integers; enum members it would look up."""


class Batch(NamedTuple):
    """Totals over the requests that sample.

    total_weight: W, summed in row order. num_sampling: N. context_tokens: of those requests.
    max_weight: no gain exceeds it. is_weighted: some weight differs from 1.
    """

    total_weight: float
    num_sampling: int
    context_tokens: int
    max_weight: float
    is_weighted: bool


class Gains(NamedTuple):
    """What the confidences of one step amount to.

    num_drafts: eligible positions within the cap per request. num_gains: those of positive gain;
    their gains lie in workspace.gain[:num_gains], in no order. survival_sum: over the positions
    within the cap. num_above: of these, the ones whose survival reaches the threshold.
    num_repaired: single values replaced among all drafts present. num_prior_rows: rows without any
    confidence.
    """

    num_drafts: int
    num_gains: int
    survival_sum: float
    num_above: int
    num_repaired: int
    num_prior_rows: int


@njit(cache=True, nogil=True)
def _as_int64(value: Any) -> Any:
    """Signed, for unsigned with signed makes float64 in compiled code."""
    return np.int64(value)


@njit(cache=True, nogil=True)
def sane_weight(weight: Any) -> Any:
    """The weight of a row; 1 where shared memory holds something impossible."""
    value = np.float64(weight)
    return value if 0.0 <= value < np.inf else 1.0


@njit(cache=True, nogil=True)
def num_present(samples: Any, num_draft_tokens: Any, max_draft_tokens: int) -> Any:
    """Drafts present in a row, clamped: a count from shared memory is never trusted."""
    return min(_as_int64(num_draft_tokens), max_draft_tokens) if samples != 0 else 0


@njit(cache=True, nogil=True)
def summarise_batch(step: StepInput) -> Any:
    """Batch totals, one pass over the rows."""
    total_weight, max_weight, is_weighted = 0.0, 0.0, False
    num_sampling, num_context = 0, _as_int64(0)
    for row in range(step.num_requests):
        if step.samples[row] != 0:
            value = sane_weight(step.weight[row])
            total_weight += value
            max_weight = max(max_weight, value)
            is_weighted |= value != 1.0
            num_sampling += 1
            num_context += _as_int64(step.context_tokens[row])
    return Batch(total_weight, num_sampling, num_context, max_weight, is_weighted)


@njit(cache=True, nogil=True)
def _learn_row(values: Any, length: int, position_sum: Any, position_count: Any) -> Any:
    """Add the valid values of a row to this step's sums; returns how many are impossible."""
    num_invalid = 0
    for position in range(length):
        value = np.float64(values[position])
        is_valid = 0.0 <= value <= 1.0
        position_sum[position] += value if is_valid else 0.0
        position_count[position] += 1.0 if is_valid else 0.0
        num_invalid += not is_valid
    return num_invalid


@njit(cache=True, nogil=True)
def _update_running_mean(prior: RunningMean, workspace: Workspace) -> None:
    """mean <- (mean * samples + this step's sum) / (samples + this step's), memory bounded."""
    for position in range(len(prior.mean)):
        total = prior.num_samples[position] + workspace.position_count[position]
        if total > 0.0:
            past = prior.mean[position] * prior.num_samples[position]
            prior.mean[position] = (past + workspace.position_sum[position]) / total
            prior.num_samples[position] = min(total, MEMORY_SAMPLES)


@njit(cache=True, nogil=True)
def _emit_row(values: Any, length: int, weight: float, out: Any, survivals: Any) -> Any:
    """Append a row's positive gains to `out` (a prefix, for survival never rises); its survivals.

    values and survivals may be the same memory. Returns (number of positive gains, survival sum).
    """
    survival, survival_sum, num_gains = 1.0, 0.0, 0
    for position in range(length):
        survival = survival * values[position]
        gain = weight * survival
        survivals[position] = survival
        out[position] = gain
        survival_sum += survival
        num_gains += gain > 0.0
    return num_gains, survival_sum


@njit(cache=True, nogil=True)
def _repair_row(values: Any, length: int, is_absent: bool, mean: Any, out: Any) -> Any:
    """Copy a row with every missing or impossible value replaced; returns how many single ones."""
    num_repaired = 0
    for position in range(length):
        value = np.float64(values[position])
        is_valid = 0.0 <= value <= 1.0
        num_repaired += not (is_valid or is_absent)
        out[position] = value if is_valid and not is_absent else mean[position]
    return num_repaired


@njit(cache=True, nogil=True)
def _count_above(step: StepInput, max_verify_len: int, threshold: float, survival: Any) -> Any:
    """Survivals that reach the threshold; along a row they are the leading ones."""
    num_above = 0
    for row in range(step.num_requests):
        present = num_present(
            step.samples[row], step.num_draft_tokens[row], step.confidence.shape[1]
        )
        for position in range(min(present, max_verify_len)):
            num_above += survival[row, position] >= threshold
    return num_above


@njit(cache=True, nogil=True)
def collect_gains(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    step: StepInput,
    max_verify_len: int,
    threshold: float,
    left_out: int,
    prior: RunningMean,
    workspace: Workspace,
) -> Any:
    """Gains of the step; workspace.survival[r] holds the survivals of row r.

    Rows that need the prior wait until it has seen the valid values of this step. threshold: above
    1 it counts nothing. left_out: Features. Helpers called per row take single arrays, or they
    would not be inlined.
    """
    max_draft_tokens = step.confidence.shape[1]
    position_sum, position_count = workspace.position_sum, workspace.position_count
    position_sum[:] = 0.0
    position_count[:] = 0.0
    num_drafts, num_gains, survival_sum = 0, 0, 0.0
    num_pending, num_repaired, num_prior_rows = 0, 0, 0
    for row in range(step.num_requests):
        present = num_present(step.samples[row], step.num_draft_tokens[row], max_draft_tokens)
        length = min(present, max_verify_len)
        num_drafts += length
        values = step.confidence[row]
        is_absent = step.has_confidence[row] == 0
        num_prior_rows += is_absent and present > 0
        if is_absent or _learn_row(values, present, position_sum, position_count) > 0:
            workspace.pending[num_pending] = row
            num_pending += 1
            continue
        weight = sane_weight(step.weight[row])
        out, survivals = workspace.gain[num_gains:], workspace.survival[row]
        row_gains, row_sum = _emit_row(values, length, weight, out, survivals)
        num_gains += row_gains
        survival_sum += row_sum
    _update_running_mean(prior, workspace)
    typical = prior.mean
    if left_out & PRIOR:
        position_sum[:] = 1.0
        typical = position_sum
    for index in range(num_pending):
        row = workspace.pending[index]
        present = num_present(step.samples[row], step.num_draft_tokens[row], max_draft_tokens)
        values, survivals = step.confidence[row], workspace.survival[row]
        is_absent = step.has_confidence[row] == 0
        num_repaired += _repair_row(values, present, is_absent, typical, survivals)
        length, weight = min(present, max_verify_len), sane_weight(step.weight[row])
        out = workspace.gain[num_gains:]
        row_gains, row_sum = _emit_row(survivals, length, weight, out, survivals)
        num_gains += row_gains
        survival_sum += row_sum
    num_above = 0
    if threshold <= 1.0:
        num_above = _count_above(step, max_verify_len, threshold, workspace.survival)
    return Gains(num_drafts, num_gains, survival_sum, num_above, num_repaired, num_prior_rows)


@njit(cache=True, nogil=True)
def sum_admitted_survival(
    step: StepInput, max_verify_len: int, choice: Choice, workspace: Workspace
) -> Any:
    """Unweighted survival of the gains above choice.cut, then of ties by position, then row."""
    max_draft_tokens = step.confidence.shape[1]
    total, num_left = 0.0, choice.budget
    for row in range(step.num_requests):
        weight = sane_weight(step.weight[row])
        present = num_present(step.samples[row], step.num_draft_tokens[row], max_draft_tokens)
        for position in range(min(present, max_verify_len)):
            survival = workspace.survival[row, position]
            is_above = weight * survival > choice.cut
            total += survival if is_above else 0.0
            num_left -= is_above
    for position in range(min(max_draft_tokens, max_verify_len)):
        for row in range(step.num_requests):
            if num_left <= 0:
                return total
            present = num_present(step.samples[row], step.num_draft_tokens[row], max_draft_tokens)
            survival = workspace.survival[row, position]
            is_tie = sane_weight(step.weight[row]) * survival == choice.cut
            if is_tie and position < present:
                total += survival
                num_left -= 1
    return total
