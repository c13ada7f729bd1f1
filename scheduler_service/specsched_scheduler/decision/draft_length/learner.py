"""The draft length of one executor: one learned for each batch size, the present one's followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepReport

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.draft_length.averages import Averages
from specsched_scheduler.decision.draft_length.outcome import Floats, Outcome, outcome_of
from specsched_scheduler.decision.draft_length.plan import DraftLengthPlan
from specsched_scheduler.decision.draft_length.probing import Probing

__all__ = ["DraftLength", "LoadState"]

HYSTERESIS, HYSTERESIS_SHORTER = 0.02, 0.01
"""By what share another length has to be better: of a shorter one all is known, and it needs no
probes."""
MIN_STEPS_APART = 64
"""Steps between two changes at one batch size."""
MIN_EVIDENCE, MIN_EVIDENCE_STEPS = 256.0, 4.0
"""Request-steps, and steps, that a position must have been seen in before it moves the length."""
MIN_EVIDENCE_CLEAR, CLEAR_ERRORS = 32.0, 3.0
"""The same where the difference is so many times its standard error."""
_BATCH_REACH = 0.6
"""How far from a power of two, in powers, a batch size still counts as that."""
_STEPS_TO_MOVE = 4
"""So many steps in a row of another batch size are another load. Fewer are a request or two inside
a prefill, which leaves no room for drafts."""


class LoadState(NamedTuple):
    """What is known at batches of about 2^log2_requests; the arrays as in Averages."""

    log2_requests: int
    draft_tokens: int
    probe_period: int
    gain: Floats
    extra: Floats
    evidence: Floats
    seen: Floats


class DraftLength:
    """Learns from the reports of one executor, in order. Pure: no clock.

    plan: what to follow now; full drafts until there is evidence against them.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.plan = DraftLengthPlan(max_draft_tokens, 0, max_draft_tokens)
        self._max_draft_tokens = max_draft_tokens
        self._loads: dict[int, _AtLoad] = {}
        self._load: int | None = None
        self._strays: list[float] = []  # the newest steps in a row that were not of this load
        self._last_step_id = 0
        self._last_asked = 0

    def observe(self, report: StepReport, table: CostTable, *, is_frozen: bool = False) -> None:
        """Learn from a finished step and choose anew. table: prices of this executor's steps.

        is_frozen: only follow the load, with the lengths that are known, and do not probe.
        """
        is_next = report.step_id == self._last_step_id + 1
        num_known = min(report.asked_draft_tokens, self._last_asked if is_next else 0)
        self._last_step_id, self._last_asked = report.step_id, report.asked_draft_tokens
        if not table.has_model or report.num_sampling == 0:
            return
        is_of_load = self._follow_load(report.num_sampling)
        at_load = self._at_load()
        if is_frozen:
            self.plan = DraftLengthPlan(at_load.draft_tokens, 0, at_load.draft_tokens)
            return
        if is_of_load:
            outcome = outcome_of(report, table, self._max_draft_tokens, num_known)
            at_load.learn(outcome, report.step_id)
        self.plan = at_load.plan(table)

    def loads(self) -> list[LoadState]:
        """What was learned, by batch size; of sizes that drafts were seen at."""
        return [each.state() for _, each in sorted(self._loads.items()) if each.averages.seen.any()]

    def restore(self, loads: Iterable[LoadState]) -> None:
        """Go on from what was learned elsewhere, here forgotten."""
        self._loads = {}
        for state in loads:
            self._loads[state.log2_requests] = _AtLoad.of(state)
        draft_tokens = self._at_load().draft_tokens
        self.plan = DraftLengthPlan(draft_tokens, 0, draft_tokens)

    def _at_load(self) -> _AtLoad:
        load = self._load or 0
        if load not in self._loads:
            self._loads[load] = _AtLoad(load, Averages.empty(self._max_draft_tokens))
        return self._loads[load]

    def _follow_load(self, num_sampling: int) -> bool:
        """Whether a step is of the load that counts as the present one, which may change to it."""
        size = float(np.log2(num_sampling))
        if self._load is None:
            self._load = round(size)
        if abs(size - self._load) <= _BATCH_REACH:
            self._strays.clear()
            return True
        self._strays.append(size)
        if len(self._strays) < _STEPS_TO_MOVE:
            return False
        self._load = round(float(np.median(self._strays)))
        self._strays.clear()
        self._at_load().enter()
        return True


class _AtLoad:
    """What is known at one batch size, of 2^load requests, and the length that follows from it."""

    def __init__(self, load: int, averages: Averages) -> None:
        self.averages = averages
        self.draft_tokens = averages.max_draft_tokens
        self._load = load
        self._probing = Probing(averages.max_draft_tokens, 1 << load)
        self._min_evidence = max(MIN_EVIDENCE, MIN_EVIDENCE_STEPS * 2.0**load)
        self._changed_at: int | None = None

    @classmethod
    def of(cls, state: LoadState) -> _AtLoad:
        """As it was elsewhere. The arrays are copied: averages change in place."""
        known = (state.gain, state.extra, state.evidence, state.seen)
        at_load = cls(state.log2_requests, Averages(*(each.copy() for each in known)))
        at_load.draft_tokens = state.draft_tokens
        at_load._probing.go_on(state.probe_period)
        return at_load

    def state(self) -> LoadState:
        """To be kept or handed over."""
        known = self.averages
        arrays = (each.copy() for each in (known.gain, known.extra, known.evidence, known.seen))
        return LoadState(self._load, self.draft_tokens, self._probing.period, *arrays)

    def enter(self) -> None:
        """The load is this one again: what was known of it may be old."""
        self._probing.restart()

    def learn(self, outcome: Outcome, step_id: int) -> None:
        """Take a step in and choose anew."""
        if outcome.num_known:
            self.averages.learn(outcome, self.draft_tokens)
        worth_it = self.averages.speed[self.draft_tokens] * (1.0 + HYSTERESIS)
        self._probing.observe(outcome, self.draft_tokens, worth_it)
        if self._changed_at is None or step_id - self._changed_at >= MIN_STEPS_APART:
            self._choose(step_id)

    def plan(self, table: CostTable) -> DraftLengthPlan:
        """What to do at this batch size."""
        return self._probing.plan(self.draft_tokens, self.averages.speed, table)

    def _choose(self, step_id: int) -> None:
        speed = self.averages.speed
        present = speed[self.draft_tokens]
        errors = self.averages.standard_error(self.draft_tokens)
        is_clear = speed - present > CLEAR_ERRORS * errors
        is_known = self._are_seen(self._min_evidence) | (
            self._are_seen(MIN_EVIDENCE_CLEAR) & is_clear
        )
        is_shorter = np.arange(len(speed)) < self.draft_tokens
        needed = np.where(is_shorter, HYSTERESIS_SHORTER, HYSTERESIS)
        is_better = is_known & (speed > present * (1.0 + needed))
        if is_better.any():
            self.draft_tokens = int(np.argmax(np.where(is_better, speed, -np.inf)))
            self._changed_at = step_id
            self._probing.restart()

    def _are_seen(self, least: float) -> npt.NDArray[np.bool_]:
        """bool [k + 1]: whether a length and the present one can be compared."""
        are_seen = self.averages.are_seen(least)
        return are_seen if are_seen[self.draft_tokens] else np.zeros_like(are_seen)
