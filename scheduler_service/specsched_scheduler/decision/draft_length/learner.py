"""The draft length of one executor: one learned for each batch size, the present one's followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.plan import StepReport
from specsched_protocol.shm.report_ring import ASKED_DRAFT_TOKENS, NUM_SAMPLING, STEP_ID

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.draft_length.averages import (
    is_clear,
    is_seen,
    learn,
    renew_speed,
)
from specsched_scheduler.decision.draft_length.loads import (
    NEVER,
    NUM_LOADS,
    LoadState,
    new_load_states,
)
from specsched_scheduler.decision.draft_length.outcome import outcome_of
from specsched_scheduler.decision.draft_length.plan import DraftLengthPlan
from specsched_scheduler.decision.draft_length.probing import observe_probe, plan_at, probe_soon
from specsched_scheduler.decision.finished import FinishedSteps, finished_steps

__all__ = ["DraftLength"]

HYSTERESIS, HYSTERESIS_SHORTER = 0.02, 0.01
"""By what share another length has to be better: of a shorter one all is known, and it needs no
probes."""
MIN_STEPS_APART = 64
"""Steps between two changes at one batch size."""
MIN_EVIDENCE, MIN_EVIDENCE_STEPS = 256.0, 4.0
"""Request-steps, and steps, that a position must have been seen in before it moves the length."""
MIN_EVIDENCE_CLEAR = 32.0
"""The same where the difference is clear."""
_BATCH_REACH = 0.6
"""How far from a power of two, in powers, a batch size still counts as that."""
_STEPS_TO_MOVE = 4
"""So many steps in a row of another batch size are another load. Fewer are a request or two inside
a prefill, which leaves no room for drafts."""

# What is remembered between steps, int64.
_LOAD, _LAST_STEP_ID, _LAST_ASKED, _NUM_STRAYS = range(4)
_NO_LOAD = -1


class DraftLength:
    """Learns from the finished steps of one executor, in order. Pure: no clock.

    plan: what to follow now; full drafts until there is evidence against them.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self.plan = DraftLengthPlan(max_draft_tokens, 0, max_draft_tokens)
        self._loads = new_load_states(max_draft_tokens)
        self._memory = np.array([_NO_LOAD, 0, 0, 0], dtype=np.int64)
        self._strays = np.zeros(_STEPS_TO_MOVE)

    def observe(self, report: StepReport, table: CostTable, *, is_frozen: bool = False) -> None:
        """`follow` one step."""
        self.follow(finished_steps([report]), table, is_frozen=is_frozen)

    def follow(self, steps: FinishedSteps, table: CostTable, *, is_frozen: bool = False) -> None:
        """Learn from finished steps and choose anew. table: prices of this executor's steps.

        is_frozen: only follow the load, with the lengths that are known, and do not probe.
        """
        if not _follow(steps, table, self._loads, self._memory, self._strays, bool(is_frozen)):
            return
        if is_frozen:
            self._plan_without_probes()
        else:
            self.plan = plan_at(self._loads, self._load, table)

    def loads(self) -> list[LoadState]:
        """What was learned, by batch size; of sizes that drafts were seen at."""
        return [self._state(load) for load in np.flatnonzero(self._loads.seen.any(axis=1)).tolist()]

    def restore(self, loads: Iterable[LoadState]) -> None:
        """Go on from what was learned elsewhere, here forgotten."""
        self._loads = new_load_states(self._loads.gain.shape[1])
        for state in loads:
            load = state.log2_requests
            self._loads.draft_tokens[load] = state.draft_tokens
            self._loads.probe_period[load] = state.probe_period
            for name in ("gain", "extra", "evidence", "seen"):
                getattr(self._loads, name)[load] = getattr(state, name)
            renew_speed(self._loads, load)
        self._plan_without_probes()

    @property
    def _load(self) -> int:
        return max(int(self._memory[_LOAD]), 0)

    def _plan_without_probes(self) -> None:
        draft_tokens = int(self._loads.draft_tokens[self._load])
        self.plan = DraftLengthPlan(draft_tokens, 0, draft_tokens)

    def _state(self, load: int) -> LoadState:
        known = self._loads
        return LoadState(
            load,
            int(known.draft_tokens[load]),
            int(known.probe_period[load]),
            *(each[load].copy() for each in (known.gain, known.extra, known.evidence, known.seen)),
        )


@njit(cache=True, nogil=True)
def _follow(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    steps: Any, table: Any, loads: Any, memory: Any, strays: Any, is_frozen: bool
) -> bool:
    """Learn from FinishedSteps; whether any of them counted."""
    gain, extra = np.zeros(loads.gain.shape[1]), np.zeros(loads.gain.shape[1])
    any_counted = False
    for step in range(steps.words.shape[1]):
        step_id, asked = steps.words[STEP_ID, step], steps.words[ASKED_DRAFT_TOKENS, step]
        is_next = step_id == memory[_LAST_STEP_ID] + 1
        num_known = min(asked, memory[_LAST_ASKED] if is_next else 0)
        memory[_LAST_STEP_ID], memory[_LAST_ASKED] = step_id, asked
        num_sampling = steps.words[NUM_SAMPLING, step]
        if not table.has_model or num_sampling <= 0:
            continue
        any_counted = True
        if _follow_load(loads, memory, strays, num_sampling) and not is_frozen:
            outcome_of(steps, step, table, gain, extra)
            known = max(min(num_known, len(gain)), 0)
            _learn(loads, memory[_LOAD], gain, extra, num_sampling, known, step_id)
    return any_counted


@njit(cache=True, nogil=True)
def _follow_load(loads: Any, memory: Any, strays: Any, num_sampling: int) -> bool:
    """Whether a step is of the load that counts as the present one, which may change to it."""
    size = np.log2(float(num_sampling))
    if memory[_LOAD] == _NO_LOAD:
        memory[_LOAD] = min(np.int64(np.rint(size)), NUM_LOADS - 1)
    if abs(size - memory[_LOAD]) <= _BATCH_REACH:
        memory[_NUM_STRAYS] = 0
        return True
    strays[memory[_NUM_STRAYS]] = size
    memory[_NUM_STRAYS] += 1
    if memory[_NUM_STRAYS] < _STEPS_TO_MOVE:
        return False
    memory[_LOAD] = min(np.int64(np.rint(np.median(strays))), NUM_LOADS - 1)
    memory[_NUM_STRAYS] = 0
    probe_soon(loads, memory[_LOAD])  # what was known of it may be old
    return True


@njit(cache=True, nogil=True)
def _learn(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    loads: Any, load: int, gain: Any, extra: Any, num_sampling: int, num_known: int, step_id: int
) -> None:
    """Take a step in and choose the length of its load anew."""
    if num_known > 0:
        learn(loads, load, gain, extra, num_sampling, num_known)
    worth_it = loads.speed[load, loads.draft_tokens[load]] * (1.0 + HYSTERESIS)
    observe_probe(loads, load, gain, extra, num_sampling, num_known, worth_it)
    changed_at = loads.changed_at[load]
    if changed_at != NEVER and step_id - changed_at < MIN_STEPS_APART:
        return
    best = _best_length(loads, load)
    if best != loads.draft_tokens[load]:
        loads.draft_tokens[load] = best
        loads.changed_at[load] = step_id
        probe_soon(loads, load)


@njit(cache=True, nogil=True)
def _best_length(loads: Any, load: int) -> Any:
    """The fastest length that is known to be better than the present one, else that."""
    present = loads.draft_tokens[load]
    least = max(MIN_EVIDENCE, MIN_EVIDENCE_STEPS * 2.0**load)
    best, best_speed = present, -np.inf
    for length in range(loads.speed.shape[1]):
        speed, longer = loads.speed[load, length], max(length, present)
        needed = HYSTERESIS_SHORTER if length < present else HYSTERESIS
        if speed <= loads.speed[load, present] * (1.0 + needed) or speed <= best_speed:
            continue
        is_known = is_seen(loads, load, longer, least)
        if not is_known and is_seen(loads, load, longer, MIN_EVIDENCE_CLEAR):
            is_known = is_clear(loads, load, length, present)
        if is_known:
            best, best_speed = length, speed
    return best
