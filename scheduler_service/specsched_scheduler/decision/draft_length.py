"""How long the next drafts are, 0..k: learned from what longer ones brought and cost.

    speed(L) = (1 + sum over j < L of gain[j]) / (1 + sum over j < L of extra[j])

gain[j]: accepted drafts at position j per sampling request. extra[j]: what position j adds to the
step (its verified rows, and drafting one token further), as a share of the step without drafts.
Both are averages over many steps, kept apart by batch size; a single step says next to nothing, and
following it loses more than drafting always. They are outcomes, so that they hold however wrong the
confidences are.

speed(L) is relative to no drafts at all. A better length replaces the present one if it is better
by HYSTERESIS, well enough known, and the last change is MIN_STEPS_APART steps ago. Positions that
are not drafted are learned from probes: full drafts in two steps in a row, of which the second
counts, for only there did the budget rest on confidences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.plan import StepReport

from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.reference import draft_ms, verify_ms
from specsched_scheduler.decision.step import PolicyRule

__all__ = ["DraftLength", "DraftLengthPlan", "next_draft_tokens"]

HYSTERESIS = 0.02
MIN_STEPS_APART = 64
MIN_EVIDENCE = 256.0
"""Request-steps that a position must have been seen in before it moves the length."""
MEMORY_STEPS, MEMORY_REQUEST_STEPS = 64, 2048
"""What the averages remember of positions that are drafted: whichever is more."""
PROBE_MEMORY_STEPS, PROBE_MEMORY_REQUEST_STEPS = 4, 512
"""The same of positions seen in probes only."""
MIN_PROBE_PERIOD, MAX_PROBE_PERIOD = 32, 128
NUM_PROBE_STEPS = 2
_MAX_BUCKETS = 17
"""Batch sizes by powers of two, up to 2^16."""

# Numba inlines module integers; enum members it would look up.
THROUGHPUT, SLO = int(PolicyCode.THROUGHPUT), int(PolicyCode.SLO)
RATIO, GREEDY_CAUSAL = int(PolicyCode.RATIO), int(PolicyCode.GREEDY_CAUSAL)
FIXED, OFF = int(PolicyCode.FIXED), int(PolicyCode.OFF)

Floats = npt.NDArray[np.float64]


class DraftLengthPlan(NamedTuple):
    """draft_tokens: length of drafts. probe_period: steps between probes at k, 0 for no probes."""

    draft_tokens: int
    probe_period: int


@njit(cache=True, nogil=True)
def next_draft_tokens(
    rule: PolicyRule, step_id: int, plan: DraftLengthPlan, max_draft_tokens: int
) -> Any:
    """Length of the drafts made at the end of a step: none that the policy cannot verify.

    The plan counts for policies that weigh tokens against time.
    """
    if rule.code == OFF:
        return 0
    if rule.code == FIXED:
        return min(np.int64(rule.parameter), max_draft_tokens)
    if rule.code not in (THROUGHPUT, RATIO, GREEDY_CAUSAL, SLO):
        return max_draft_tokens
    is_probe = plan.probe_period > 0 and step_id % plan.probe_period < NUM_PROBE_STEPS
    return max_draft_tokens if is_probe else min(plan.draft_tokens, max_draft_tokens)


class DraftLength:
    """Learns the draft length of one executor from its reports, in order. Pure: no clock.

    plan: what to follow now; full drafts until there is evidence against them.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.plan = DraftLengthPlan(max_draft_tokens, 0)
        self._max_draft_tokens = max_draft_tokens
        self._gain = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._extra = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._evidence = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._last_step_id = 0
        self._last_asked = 0
        self._last_bucket = 0
        self._changed_at: int | None = None

    def observe(self, report: StepReport, table: CostTable) -> None:
        """Learn from a finished step and choose anew. table: prices of this executor's steps."""
        is_next = report.step_id == self._last_step_id + 1
        num_known = min(report.asked_draft_tokens, self._last_asked if is_next else 0)
        self._last_step_id, self._last_asked = report.step_id, report.asked_draft_tokens
        if self._changed_at is None:
            self._changed_at = report.step_id
        if not table.has_model or report.num_sampling == 0:
            return
        bucket = min(report.num_sampling.bit_length(), _MAX_BUCKETS - 1)
        if num_known > 0:
            self._learn(bucket, report, table, num_known)
        self._choose(bucket, report.step_id, is_probed=num_known > self.plan.draft_tokens)

    def speed(self, num_sampling: int) -> Floats:
        """speed(L), float64 [k + 1], for batches of about so many requests."""
        bucket = min(num_sampling.bit_length(), _MAX_BUCKETS - 1)
        return self._speed(bucket)

    def _speed(self, bucket: int) -> Floats:
        gain = np.concatenate([[0.0], np.cumsum(self._gain[bucket])])
        extra = np.concatenate([[0.0], np.cumsum(self._extra[bucket])])
        speed: Floats = (1.0 + gain) / (1.0 + extra)
        return speed

    def _learn(self, bucket: int, report: StepReport, table: CostTable, num_known: int) -> None:
        gain, extra = outcome_by_position(report, table, self._max_draft_tokens)
        known, drafted = np.arange(num_known), self.plan.draft_tokens
        num_sampling = report.num_sampling
        memory = np.where(
            known < drafted,
            max(MEMORY_STEPS * num_sampling, MEMORY_REQUEST_STEPS),
            max(PROBE_MEMORY_STEPS * num_sampling, PROBE_MEMORY_REQUEST_STEPS),
        )
        evidence = np.minimum(self._evidence[bucket, known] + num_sampling, memory)
        share = num_sampling / evidence
        self._evidence[bucket, known] = evidence
        self._gain[bucket, known] += share * (gain[known] - self._gain[bucket, known])
        self._extra[bucket, known] += share * (extra[known] - self._extra[bucket, known])

    def _choose(self, bucket: int, step_id: int, *, is_probed: bool) -> None:
        length, period = self.plan
        is_known = np.append(True, self._evidence[bucket] >= MIN_EVIDENCE)
        speed = np.where(np.logical_and.accumulate(is_known), self._speed(bucket), -np.inf)
        best = int(np.argmax(speed))
        is_due = step_id - (self._changed_at or 0) >= MIN_STEPS_APART
        if is_due and speed[best] > speed[length] * (1.0 + HYSTERESIS) > 0.0:
            length, period = best, MIN_PROBE_PERIOD
            self._changed_at = step_id
        elif bucket != self._last_bucket:
            period = MIN_PROBE_PERIOD
        elif is_probed:
            period = min(2 * period, MAX_PROBE_PERIOD)
        self._last_bucket = bucket
        self.plan = DraftLengthPlan(length, period if length < self._max_draft_tokens else 0)


def outcome_by_position(
    report: StepReport, table: CostTable, max_draft_tokens: int
) -> tuple[Floats, Floats]:
    """(gain, extra) of one step, float64 [k] each; see the module.

    The time is that of the cost model for the rows that were run, so that a hiccup of the machine
    teaches nothing; a prefill chunk is charged to nobody, as in the decision.
    """
    num_sampling = report.num_sampling
    num_reached = _at_least(report.num_verified, max_draft_tokens)
    num_rows = report.num_tokens - int(report.num_verified.sum())
    rows = num_rows + np.concatenate([[0], np.cumsum(num_reached)])
    without_chunk = verify_ms(table, np.array([num_rows - report.num_prefill_tokens]))[0]
    relative = report.context_tokens - table.profiled_context * num_sampling
    base_ms = max(without_chunk + table.context_ms_per_token * relative, without_chunk / 10.0)
    lengths = range(max_draft_tokens + 1)
    drafts = np.array([draft_ms(table, num_sampling, length) for length in lengths])
    gain = _at_least(report.num_accepted, max_draft_tokens) / num_sampling
    return gain, np.diff(verify_ms(table, rows) + drafts) / base_ms


def _at_least(counts: npt.NDArray[np.uint32], max_draft_tokens: int) -> npt.NDArray[np.int64]:
    """int64 [k]: how many counts exceed 0, 1, ..., k - 1."""
    occurrences = np.bincount(counts, minlength=max_draft_tokens + 1)
    exceeding: npt.NDArray[np.int64] = np.cumsum(occurrences[::-1])[::-1][1:]
    return exceeding[:max_draft_tokens]
