"""How long drafts are, step by step in plain numpy: what the compiled learner is held to."""

from __future__ import annotations

import numpy as np
from specsched_scheduler.decision.draft_length import DraftLengthPlan, averages, learner, probing
from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD,
    MAX_PROBE_PERIOD_OFF,
    MIN_PROBE_PERIOD,
)
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS
from specsched_scheduler.decision.reference import draft_ms, verify_ms


class ReferenceDraftLength:
    """plan: what to follow after the last report."""

    def __init__(self, max_draft_tokens):
        self.k = max_draft_tokens
        self.plan = DraftLengthPlan(self.k, 0, self.k)
        self.loads = {}
        self.load = None
        self.strays = []
        self.last_step_id = self.last_asked = 0

    def observe(self, report, table):
        is_next = report.step_id == self.last_step_id + 1
        num_known = min(report.asked_draft_tokens, self.last_asked if is_next else 0)
        self.last_step_id, self.last_asked = report.step_id, report.asked_draft_tokens
        if report.num_sampling == 0:
            return
        is_of_load = self._follow_load(report.num_sampling)
        at_load = self._at_load()
        if is_of_load:
            gain, extra = self._outcome(report, table)
            at_load.learn(gain, extra, report.num_sampling, num_known, report.step_id)
        self.plan = at_load.plan(table)

    def _at_load(self):
        return self.loads.setdefault(self.load, _AtLoad(self.load, self.k))

    def _follow_load(self, num_sampling):
        size = float(np.log2(num_sampling))
        if self.load is None:
            self.load = round(size)
        if abs(size - self.load) <= 0.6:
            self.strays.clear()
            return True
        self.strays.append(size)
        if len(self.strays) < 4:
            return False
        self.load = round(float(np.median(self.strays)))
        self.strays.clear()
        self._at_load().probe_soon()
        return True

    def _outcome(self, report, table):
        n, positions = report.num_sampling, np.arange(self.k)
        reached = (report.num_verified[:, None] > positions).sum(axis=0)
        rows = report.num_tokens - int(report.num_verified.sum())
        plain = verify_ms(table, np.array([rows - report.num_prefill_tokens]))[0]
        relative = report.context_tokens - table.profiled_context * n
        base = max(plain + table.context_ms_per_token * relative, plain / 10.0)
        verify = verify_ms(table, rows + np.append(0, np.cumsum(reached)))
        drafts = np.array([draft_ms(table, n, length) for length in range(self.k + 1)])
        gain = (report.num_accepted[:, None] > positions).sum(axis=0) / n
        return gain, np.diff(verify + drafts) / base


class _AtLoad:
    def __init__(self, load, k):
        self.load, self.k, self.draft_tokens, self.changed_at = load, k, k, None
        self.gain, self.extra, self.evidence, self.seen = np.zeros((4, k))
        self.num_probes = 0
        self.probe_soon()

    def probe_soon(self):
        self.period = min(max(MIN_PROBE_PERIOD, 1 << self.load), MAX_PROBE_PERIOD_OFF)
        self.steps, self.speeds, self.num_promising = MIN_PROBE_STEPS, [], 0

    @property
    def speed(self):
        gains, extras = (np.append(0, np.cumsum(each)) for each in (self.gain, self.extra))
        return (1.0 + gains) / (1.0 + extras)

    def learn(self, gain, extra, n, num_known, step_id):
        known = np.arange(num_known)
        drafted = max(averages.MEMORY_STEPS * n, averages.MEMORY_REQUEST_STEPS)
        probed = max(averages.PROBE_MEMORY_STEPS * n, averages.PROBE_MEMORY_REQUEST_STEPS)
        memory = np.where(known < self.draft_tokens, drafted, probed)
        self.evidence[known] = np.minimum(self.evidence[known] + n, memory)
        share = n / self.evidence[known]
        self.gain[known] += share * (gain[known] - self.gain[known])
        self.extra[known] += share * (extra[known] - self.extra[known])
        self.seen[known] += n
        self._observe_probe(gain, extra, n, num_known)
        if self.changed_at is None or step_id - self.changed_at >= learner.MIN_STEPS_APART:
            self._choose(step_id)

    def _observe_probe(self, gain, extra, n, num_known):
        if num_known > self.draft_tokens:
            self.speeds.append((1 + gain[:num_known].sum()) / (1 + extra[:num_known].sum()))
        elif self.speeds:
            worth_it = self.speed[self.draft_tokens] * (1.0 + learner.HYSTERESIS)
            is_promising = np.mean(self.speeds) > worth_it
            self.num_probes, self.speeds = self.num_probes + 1, []
            num_promising, self.num_promising = self.num_promising, 0
            if is_promising:
                self.probe_soon()
                self.num_promising = num_promising + 1
                num_taught = -(-probing.FOLLOW_UP_REQUEST_STEPS // n)
                self.steps = min(MIN_PROBE_STEPS - 1 + num_taught, probing.MAX_PROBE_STEPS)
            else:
                limit = MAX_PROBE_PERIOD if self.draft_tokens else MAX_PROBE_PERIOD_OFF
                self.period, self.steps = min(2 * self.period, limit), MIN_PROBE_STEPS

    def _choose(self, step_id):
        speed, lengths, present = self.speed, np.arange(self.k + 1), self.draft_tokens
        longer = np.maximum(lengths, present)
        least_seen = np.minimum.accumulate(np.append(np.inf, self.seen))[longer]
        evidence = np.minimum.accumulate(np.append(np.inf, self.evidence))[longer]
        evidence = np.maximum(evidence, 1.0)
        gains, extras = (np.append(0, np.cumsum(each)) for each in (self.gain, self.extra))
        mean = np.maximum(np.abs(gains - gains[present]), 1.0 / evidence)
        error = np.sqrt(mean * (1.0 + mean) / evidence) / (1.0 + extras)
        is_clear = speed - speed[present] > averages.CLEAR_ERRORS * error
        enough = max(learner.MIN_EVIDENCE, learner.MIN_EVIDENCE_STEPS * 2.0**self.load)
        is_known = (least_seen >= enough) | ((least_seen >= learner.MIN_EVIDENCE_CLEAR) & is_clear)
        needed = np.where(lengths < present, learner.HYSTERESIS_SHORTER, learner.HYSTERESIS)
        is_better = is_known & (speed > speed[present] * (1.0 + needed))
        if is_better.any():
            self.draft_tokens = int(np.argmax(np.where(is_better, speed, -np.inf)))
            self.changed_at = step_id
            self.probe_soon()

    def plan(self, table):
        if self.draft_tokens == self.k:
            return DraftLengthPlan(self.k, 0, self.k)
        longer = table.short_draft_tokens[table.short_draft_tokens > self.draft_tokens]
        tokens = self.k
        if len(longer):
            speed = self.speed
            could_be = speed[longer[0] + 1 :].max(initial=0.0) * 1.02 > speed[self.draft_tokens]
            every = probing.FULL_PROBES if could_be else probing.FULL_PROBES_HOPELESS
            is_full = self.num_probes % every == every - 1 or self.num_promising >= 2
            tokens = self.k if is_full else int(longer[0])
        return DraftLengthPlan(self.draft_tokens, self.period, tokens, self.steps)
