"""How long the next drafts are, 0..k: learned from what longer ones brought and cost.

    speed(L) = (1 + sum over j < L of gain[j]) / (1 + sum over j < L of extra[j])

gain[j]: accepted drafts at position j per sampling request. extra[j]: what position j adds to the
step (its verified rows, and drafting one token further), as a share of the step without drafts.
Both are averages over many steps, kept apart by batch size; a single step says next to nothing, and
following it loses more than drafting always. They are outcomes, so that they hold however wrong the
confidences are.

speed(L) is relative to no drafts at all. A better length replaces the present one if it is better
by HYSTERESIS, well enough known, and the last change is MIN_STEPS_APART steps ago. Batch sizes are
told apart by a running mean: a step now and then whose requests are fewer, because one of them is
inside a prefill that leaves no room for drafts, is not another load.

Positions that are not drafted are learned from probes: longer drafts in two steps in a row, of
which the second counts, for only there did the budget rest on confidences. Most probes go no
further than the next longer profiled length, since what that does not bring the rest will not
either. For where drafts cost about the same however long they are some are full: one in four where
that could be worth it, by what the last ones brought, and else one in sixteen.
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
MIN_EVIDENCE, MIN_EVIDENCE_STEPS = 256.0, 4.0
"""Request-steps, and steps, that a position must have been seen in before it moves the length."""
MEMORY_STEPS, MEMORY_REQUEST_STEPS = 64, 2048
"""What the averages remember of positions that are drafted: whichever is more."""
PROBE_MEMORY_STEPS, PROBE_MEMORY_REQUEST_STEPS = 16, 64
"""The same of positions seen in probes only."""
MIN_PROBE_PERIOD, MAX_PROBE_PERIOD_OFF, MAX_PROBE_PERIOD = 32, 128, 512
"""Steps between probes: twice as many after each, up to the limit without drafts, and with some;
the least again after one that looked worth it."""
NUM_PROBE_STEPS = 2
FULL_PROBES, FULL_PROBES_HOPELESS = 4, 16
"""Of so many probes one is full, where that could be worth it and where not."""
_HOPE = 1.1
"""By how much that may have changed since."""
_MAX_BUCKETS = 17
"""Batch sizes by powers of two, up to 2^16."""
_LOAD_SHARE = 1 / 32
"""Share of the newest step in the mean load."""
_BUCKET_REACH = 0.6
"""How far from a power of two, in powers, the load still counts as that."""

# Numba inlines module integers; enum members it would look up.
THROUGHPUT, SLO = int(PolicyCode.THROUGHPUT), int(PolicyCode.SLO)
RATIO, GREEDY_CAUSAL = int(PolicyCode.RATIO), int(PolicyCode.GREEDY_CAUSAL)
FIXED, OFF = int(PolicyCode.FIXED), int(PolicyCode.OFF)

Floats = npt.NDArray[np.float64]


class DraftLengthPlan(NamedTuple):
    """draft_tokens: length of drafts. probe_period: steps between probes, 0 for no probes.
    probe_tokens: length of the next probe's drafts."""

    draft_tokens: int
    probe_period: int
    probe_tokens: int


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
    return min(plan.probe_tokens if is_probe else plan.draft_tokens, max_draft_tokens)


class DraftLength:
    """Learns the draft length of one executor from its reports, in order. Pure: no clock.

    plan: what to follow now; full drafts until there is evidence against them.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.plan = DraftLengthPlan(max_draft_tokens, 0, max_draft_tokens)
        self._max_draft_tokens = max_draft_tokens
        self._gain = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._extra = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._evidence = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._seen = np.zeros((_MAX_BUCKETS, max_draft_tokens))
        self._last_step_id = 0
        self._last_asked = 0
        self._load: float | None = None
        self._bucket = 0
        self._num_probes = 0
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
        is_same_load = self._follow_load(report.num_sampling)
        if not is_same_load and not self._seen[self._bucket].any():
            # Nothing is known of this load: as at the start, and not as it was best at another.
            self.plan = DraftLengthPlan(self._max_draft_tokens, 0, self._max_draft_tokens)
            self._changed_at = report.step_id
        newest = self._learn(self._bucket, report, table, num_known) if num_known else 0.0
        is_probed = num_known > self.plan.draft_tokens
        self._num_probes += is_probed
        looks_worth_it = newest > self.speed()[self.plan.draft_tokens] * (1.0 + HYSTERESIS)
        if not is_same_load or (is_probed and looks_worth_it):
            self.plan = self.plan._replace(probe_period=MIN_PROBE_PERIOD)
        elif is_probed:
            limit = MAX_PROBE_PERIOD if self.plan.draft_tokens else MAX_PROBE_PERIOD_OFF
            period = min(2 * self.plan.probe_period, limit)
            self.plan = self.plan._replace(probe_period=period)
        self._choose(report.step_id, table)

    def speed(self) -> Floats:
        """speed(L), float64 [k + 1], at the present load."""
        return self._speed(self._bucket)

    def _follow_load(self, num_sampling: int) -> bool:
        """Whether the load still counts as the batch size that it did."""
        newest = float(np.log2(num_sampling))
        before = newest if self._load is None else self._load
        self._load = before + _LOAD_SHARE * (newest - before)
        if abs(self._load - self._bucket) <= _BUCKET_REACH:
            return True
        self._bucket = min(round(self._load), _MAX_BUCKETS - 1)
        return False

    def _speed(self, bucket: int) -> Floats:
        gain = np.concatenate([[0.0], np.cumsum(self._gain[bucket])])
        extra = np.concatenate([[0.0], np.cumsum(self._extra[bucket])])
        speed: Floats = (1.0 + gain) / (1.0 + extra)
        return speed

    def _learn(self, bucket: int, report: StepReport, table: CostTable, num_known: int) -> float:
        """Take in the first `num_known` positions; the speed of this step alone."""
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
        self._seen[bucket, known] += num_sampling
        return float((1.0 + gain[known].sum()) / (1.0 + extra[known].sum()))

    def _choose(self, step_id: int, table: CostTable) -> None:
        length, period, _ = self.plan
        least = max(MIN_EVIDENCE, MIN_EVIDENCE_STEPS * 2.0**self._bucket)
        is_seen = self._seen[self._bucket] >= least
        is_known = np.logical_and.accumulate(np.append(True, is_seen))
        speed = np.where(is_known, self._speed(self._bucket), -np.inf)
        best = int(np.argmax(speed))
        is_due = step_id - (self._changed_at or 0) >= MIN_STEPS_APART
        if is_due and speed[best] > speed[length] * (1.0 + HYSTERESIS) > 0.0:
            length, period = best, MIN_PROBE_PERIOD
            self._changed_at = step_id
        if length == self._max_draft_tokens:
            period = 0
        elif period == 0:
            period = MIN_PROBE_PERIOD
        self.plan = DraftLengthPlan(length, period, self._probe_tokens(length, table))

    def _probe_tokens(self, length: int, table: CostTable) -> int:
        longer = table.short_draft_tokens[table.short_draft_tokens > length]
        if not len(longer):
            return self._max_draft_tokens
        every = FULL_PROBES if self._could_be_longer(length) else FULL_PROBES_HOPELESS
        is_full = self._num_probes % every == every - 1
        return self._max_draft_tokens if is_full else int(longer[0])

    def _could_be_longer(self, length: int) -> bool:
        """Whether drafts of some greater length may be worth it, by what full ones brought last."""
        speed = self._speed(self._bucket)
        return bool(speed[length + 1 :].max(initial=0.0) * _HOPE > speed[length])


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
