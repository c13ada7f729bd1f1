"""How long drafts are, step by step in plain numpy: what the compiled learner is held to."""

from __future__ import annotations

import numpy as np
from specsched_scheduler.decision.draft_length import (
    DraftLengthPlan,
    Survivals,
    averages,
    choosing,
    expectation,
    learner,
    probing,
)
from specsched_scheduler.decision.draft_length.loads import (
    MAX_PROBE_PERIOD,
    MAX_PROBE_PERIOD_OFF,
    MIN_PROBE_PERIOD,
)
from specsched_scheduler.decision.draft_length.plan import MIN_PROBE_STEPS
from specsched_scheduler.decision.reference import draft_ms, verify_ms


class ReferenceDraftLength:
    """plan: what to follow after the last report. Nothing but first beliefs is expected of drafts,
    and that once: the compiled one is shown no drafts."""

    def __init__(self, max_draft_tokens, table):
        self.k = max_draft_tokens
        self.loads = {}
        self.context, self.num_steps, self.num_steps_expected, self.at_load = 0.0, 0, 0, 0
        self._expect(table)
        self.plan = self._load_of(0).plan(table)
        self.load = None
        self.strays = []
        self.last_step_id = self.last_asked = 0

    def observe(self, report, table):
        is_next = report.step_id == self.last_step_id + 1
        num_known = min(report.asked_draft_tokens, self.last_asked if is_next else 0)
        self.last_step_id, self.last_asked = report.step_id, report.asked_draft_tokens
        if report.num_sampling == 0:
            return
        self.num_steps += 1
        share = learner._CONTEXT_SHARE if self.context else 1.0
        self.context += share * (report.context_tokens / report.num_sampling - self.context)
        is_of_load = self._follow_load(report.num_sampling)
        if is_of_load:
            gain, extra = self._outcome(report, table)
            at_load = self._load_of(self.load)
            at_load.learn(gain, extra, report.num_sampling, num_known, report.step_id)

    def plan_anew(self, table):
        """After some reports."""
        least = learner._EXPECT_EVERY_NEW if self.at_load < learner._NEWS_STEPS else 8
        if self.num_steps - self.num_steps_expected >= least:
            self._expect(table)
        self.plan = self._load_of(self.load or 0).plan(table)

    def _load_of(self, load):
        return self.loads[load]

    def _expect(self, table):
        self.num_steps_expected = self.num_steps
        quantiles = Survivals(self.k).quantiles()
        for load in range(7):
            at_load = self.loads.setdefault(load, _AtLoad(load, self.k))
            at_load.expect(quantiles, self.context, table)

    def _follow_load(self, num_sampling):
        self.at_load += 1
        size = float(np.log2(num_sampling))
        if self.load is None:
            self.load = round(size)
        if abs(size - self.load) <= 0.6:
            self.strays.clear()
            return True
        self.strays.append(size)
        self.at_load = 0
        if len(self.strays) < 4:
            return False
        self.load = round(float(np.median(self.strays)))
        self.strays.clear()
        at_load = self._load_of(self.load)
        most = max(averages.AGED_STEPS * 2**self.load, averages.AGED_REQUEST_STEPS)
        at_load.evidence = np.minimum(at_load.evidence, most)
        at_load.probe_soon()
        return True

    def _outcome(self, report, table):
        n, positions = report.num_sampling, np.arange(self.k)
        reached = (report.num_verified[:, None] > positions).sum(axis=0)
        rows = report.num_tokens - int(report.num_verified.sum())
        plain = verify_ms(table, np.array([rows - report.num_prefill_tokens]))[0]
        relative = report.context_tokens - table.profiled_context * n
        base = max(plain + table.context_ms_per_token * relative, plain / 10.0)
        costs = verify_ms(table, rows + np.append(0, np.cumsum(reached)))
        verify = reached * ((costs[-1] - costs[0]) / max(reached.sum(), 1))
        if reached.sum() == report.num_verified.max(initial=0) * n:
            verify = np.diff(costs)
        drafts = np.array([draft_ms(table, n, length) for length in range(self.k + 1)])
        gain = (report.num_accepted[:, None] > positions).sum(axis=0) / n
        return gain, (verify + np.diff(drafts)) / base


class _AtLoad:
    def __init__(self, load, k):
        self.load, self.k, self.draft_tokens, self.changed_at = load, k, k, None
        self.gain, self.extra, self.evidence, self.seen = np.zeros((4, k))
        self.expected_gain, self.expected_extra = np.zeros((2, k))
        self.num_probes, self.min_period = 0, 0
        self.probe_soon()

    def expect(self, quantiles, context_tokens, table):
        n, lengths = 1 << self.load, np.arange(self.k + 1)
        plain = verify_ms(table, np.array([n]))[0]
        relative = n * (context_tokens - table.profiled_context)
        base = max(plain + table.context_ms_per_token * relative, plain / 10.0)
        gains, extras = np.zeros((2, self.k + 1))
        for length in lengths[1:]:
            surest = np.sort(quantiles[:, :length].ravel())[::-1]
            tokens = np.append(0.0, np.cumsum(surest / len(quantiles)))
            rows = n * (1.0 + np.arange(len(tokens)) / len(quantiles))
            every = np.arange(int(rows[-1]) + 2)
            more = np.interp(rows, every, verify_ms(table, every)) - plain
            shares = (draft_ms(table, n, length) + more) / base
            best = int(np.argmax((1.0 + tokens) / (1.0 + shares)))
            gains[length], extras[length] = tokens[best], shares[best]
        self.expected_gain, self.expected_extra = np.diff(gains), np.diff(extras)
        if not self.seen.any():
            fastest = int(np.argmax(self.speed))
            about = self.speed[fastest] / (1.0 + choosing.MAX_LEAD)
            if self.speed[0] >= about:
                self.draft_tokens = 0
            elif self.speed[self.draft_tokens] < about:
                self.draft_tokens = fastest
        probed = self.expected_extra[self.draft_tokens : self._next_longer(table)].sum()
        wanted = int(np.ceil(MIN_PROBE_STEPS * max(probed, 0.0) / expectation.PROBE_SHARE))
        self.min_period = max(self._least_period(), min(wanted, MAX_PROBE_PERIOD_OFF))

    def _least_period(self):
        return min(max(MIN_PROBE_PERIOD, 1 << self.load), MAX_PROBE_PERIOD_OFF)

    def _next_longer(self, table):
        longer = table.short_draft_tokens[table.short_draft_tokens > self.draft_tokens]
        return int(longer[0]) if len(longer) else self.k

    def probe_soon(self):
        self.period = max(self._least_period(), self.min_period)
        self.steps, self.speeds, self.num_promising = MIN_PROBE_STEPS, [], 0

    @property
    def trust(self):
        known = self.evidence > 0.0
        num = self.k if known.all() else int(np.argmin(known))
        if num == 0:
            return averages.EXPECTED_REQUEST_STEPS
        expected, evidence = self.expected_gain[:num].sum(), self.evidence[:num].min()
        mean = max(expected, 1.0 / averages.EXPECTED_REQUEST_STEPS)
        error = np.sqrt(mean * (1.0 + mean) / evidence)
        doubt = abs(self.gain[:num].sum() - expected) / error / averages.DOUBT_ERRORS
        return averages.EXPECTED_REQUEST_STEPS / max(1.0, doubt**6)

    @property
    def mixed(self):
        """What a longer draft brings and adds, [k + 1] each, in all."""
        weight = self.evidence / (self.evidence + self.trust)
        gain = weight * self.gain + (1.0 - weight) * self.expected_gain
        extra = weight * self.extra + (1.0 - weight) * self.expected_extra
        return np.append(0, np.cumsum(gain)), np.append(0, np.cumsum(extra))

    @property
    def speed(self):
        gains, extras = self.mixed
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
        settled_after = int(np.clip(256 // 2**self.load, 16, 64))
        apart = settled_after
        if self.changed_at is not None:
            apart = step_id - self.changed_at
        if apart >= choosing.EARLY_STEPS_APART:
            self._choose(step_id, is_early=apart < settled_after)

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

    def _choose(self, step_id, *, is_early):
        speed, lengths, present = self.speed, np.arange(self.k + 1), self.draft_tokens
        longer = np.maximum(lengths, present)
        least_seen = np.minimum.accumulate(np.append(np.inf, self.seen))[longer]
        evidence = np.append(np.inf, self.evidence + self.trust)
        evidence = np.maximum(np.minimum.accumulate(evidence)[longer], 1.0)
        gains, extras = self.mixed
        mean = np.maximum(np.abs(gains - gains[present]), 1.0 / evidence)
        early_error = np.sqrt(mean * (1.0 + mean) / evidence) / (1.0 + extras)
        variance = [self._variance(gains, present, each) for each in lengths]
        error = np.sqrt(np.maximum(variance, 1.0 / evidence) / evidence) / (1.0 + extras)
        is_clear = speed - speed[present] > averages.CLEAR_ERRORS * early_error
        is_clear &= least_seen >= choosing.MIN_EVIDENCE_CLEAR
        enough = max(choosing.MIN_EVIDENCE, choosing.MIN_EVIDENCE_STEPS * 2.0**self.load)
        is_known = is_clear if is_early else is_clear | (least_seen >= enough)
        most = np.where(lengths < present, choosing.MAX_LEAD_SHORTER, choosing.MAX_LEAD)
        chance = choosing.LEAD_ERRORS * error / speed[present]
        needed = np.clip(chance if present > 0 else most, choosing.MIN_LEAD, most)
        needed[0] = 0.0
        needed = np.where(is_early, choosing.EARLY_LEAD, needed)
        is_better = is_known & (lengths != present)
        is_better &= speed > speed[present] * (1.0 + needed)
        if is_better.any():
            self.draft_tokens = int(np.argmax(np.where(is_better, speed, -np.inf)))
            self.changed_at = step_id
            self.probe_soon()

    @staticmethod
    def _variance(gains, present, length):
        """Of the tokens that the positions between two lengths bring."""
        chances = np.diff(gains[min(present, length) : max(present, length) + 1])
        exactly = chances - np.append(chances[1:], 0.0)  # so many tokens, 1 to m
        tokens = np.arange(1, len(chances) + 1)
        return (tokens**2 * exactly).sum() - (tokens * exactly).sum() ** 2

    def plan(self, table):
        if self.draft_tokens == self.k:
            return DraftLengthPlan(self.k, 0, self.k)
        tokens = longer = self._next_longer(table)
        if longer < self.k:
            speed = self.speed
            could_be = speed[longer + 1 :].max() * 1.02 > speed[self.draft_tokens]
            every = probing.FULL_PROBES if could_be else probing.FULL_PROBES_HOPELESS
            is_full = self.num_probes % every == every - 1 or self.num_promising >= 2
            tokens = self.k if is_full else longer
        period = max(self.period, self.min_period)
        return DraftLengthPlan(self.draft_tokens, period, tokens, self.steps)
