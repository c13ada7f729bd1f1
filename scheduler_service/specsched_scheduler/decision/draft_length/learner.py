"""The draft length of one executor: one for each batch size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.plan import StepReport
from specsched_protocol.shm.report_ring import (
    ASKED_DRAFT_TOKENS,
    CONTEXT_TOKENS,
    NUM_SAMPLING,
    STEP_ID,
)

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.draft_length.averages import age, learn, renew_speed
from specsched_scheduler.decision.draft_length.choosing import best_length, fastest_length
from specsched_scheduler.decision.draft_length.expectation import affordable_period, expect
from specsched_scheduler.decision.draft_length.loads import (
    NEVER,
    NUM_LOADS,
    LoadState,
    nearest_load,
    new_load_states,
)
from specsched_scheduler.decision.draft_length.outcome import outcome_of
from specsched_scheduler.decision.draft_length.plan import DraftLengthPlan, pack_plan, unpack_plan
from specsched_scheduler.decision.draft_length.probing import observe_probe, plan_at, probe_soon
from specsched_scheduler.decision.draft_length.repricing import reprice
from specsched_scheduler.decision.draft_length.survivals import Survivals
from specsched_scheduler.decision.finished import FinishedSteps, finished_steps

__all__ = ["DraftLength"]

HYSTERESIS = 0.02
"""By what share longer drafts have to be better for a probe to be worth following up."""
_STEPS_TO_MOVE = 4
"""So many steps in a row of another batch size are another load. Fewer are a request or two inside
a prefill, which leaves no room for drafts."""
_NEWS_STEPS = 32
"""So long a load counts as new."""
_EXPECT_EVERY, _EXPECT_EVERY_NEW = 8, 2
"""Steps at least between two renewals of what is expected, and while the load is new."""
_CONTEXT_SHARE = 0.1
"""Of a new step in the mean context of a request."""

# What is remembered between steps, int64.
_LOAD, _LAST_STEP_ID, _LAST_ASKED, _NUM_STRAYS, _NUM_STEPS_AT_LOAD, _NUM_STEPS = range(6)


class DraftLength:
    """Learns from the finished steps of one executor, in order. Pure: no clock.

    survivals: of the executor's drafts, kept by whoever sees their confidences; drafts are expected
    to bring what these say, until outcomes say better.
    """

    def __init__(self, max_draft_tokens: int, survivals: Survivals | None = None) -> None:
        self.survivals = survivals or Survivals(max_draft_tokens)
        self._loads = new_load_states(max_draft_tokens)
        self._memory = np.array([NEVER, 0, 0, 0, 0, 0], dtype=np.int64)
        self._strays = np.zeros(_STEPS_TO_MOVE)
        self._context = np.zeros(1)
        self._num_steps_expected = -_EXPECT_EVERY
        self._priced_by: CostTable | None = None
        full = DraftLengthPlan(max_draft_tokens, 0, max_draft_tokens)
        self._words = np.full(NUM_LOADS, pack_plan(full), dtype=np.int64)

    @property
    def plan(self) -> DraftLengthPlan:
        """At the present batch size."""
        return self._plan_at(self._load)

    @property
    def is_load_new(self) -> bool:
        """Whether the batch size was another just before: more is learned now than later."""
        return bool(self._memory[_NUM_STEPS_AT_LOAD] < _NEWS_STEPS)

    def plan_words(self) -> npt.NDArray[np.int64]:
        """Int64 [NUM_LOADS]: the plan for each batch size, by log2 of its requests, see
        `pack_plan`."""
        return self._words.copy()

    def plan_for(self, num_requests: int) -> DraftLengthPlan:
        """For a step of so many requests, one at least."""
        return self._plan_at(int(nearest_load(self._memory[_LOAD], num_requests)))

    def begin(self, table: CostTable, *, is_frozen: bool = False) -> None:
        """Plan by what is expected where nothing was seen. table: prices of this executor's steps;
        without a model drafts stay full."""
        if table.has_model:
            self._price(table)
            self._expect(table)
            self._plan(table, is_frozen=is_frozen)

    def observe(self, report: StepReport, table: CostTable, *, is_frozen: bool = False) -> None:
        """`follow` one step."""
        self.follow(finished_steps([report]), table, is_frozen=is_frozen)

    def follow(self, steps: FinishedSteps, table: CostTable, *, is_frozen: bool = False) -> None:
        """Learn from finished steps and choose anew.

        is_frozen: only follow the load, with the lengths that are known, and do not probe.
        """
        self._price(table)
        knows = self.survivals.is_known
        if not _follow(
            steps, table, self._loads, self._memory, self._strays, self._context, knows, is_frozen
        ):
            return
        num_new = int(self._memory[_NUM_STEPS]) - self._num_steps_expected
        least = _EXPECT_EVERY_NEW if self.is_load_new else _EXPECT_EVERY
        if not is_frozen and num_new >= least:
            self._expect(table)
        self._plan(table, is_frozen=is_frozen)

    def loads(self) -> list[LoadState]:
        """What was learned, by batch size; of sizes that drafts were seen at."""
        return [self._state(load) for load in np.flatnonzero(self._loads.seen.any(axis=1)).tolist()]

    def restore(self, loads: Iterable[LoadState], table: CostTable) -> None:
        """Go on from what was learned elsewhere, here forgotten."""
        self._loads = new_load_states(self._loads.gain.shape[1])
        self._priced_by = table
        for state in loads:
            load = state.log2_requests
            self._loads.draft_tokens[load] = state.draft_tokens
            self._loads.probe_period[load] = state.probe_period
            for name in ("gain", "extra", "evidence", "seen"):
                getattr(self._loads, name)[load] = getattr(state, name)
        self.begin(table, is_frozen=True)

    @property
    def _load(self) -> int:
        return max(int(self._memory[_LOAD]), 0)

    def _plan_at(self, load: int) -> DraftLengthPlan:
        return DraftLengthPlan(*map(int, unpack_plan(self._words[load])))

    def _price(self, table: CostTable) -> None:
        """Have what was learned count at these prices."""
        before, self._priced_by = self._priced_by, table
        if before is not None and before is not table and before.has_model and table.has_model:
            reprice(self._loads, before, table, float(self._context[0]))

    def _expect(self, table: CostTable) -> None:
        self._num_steps_expected = int(self._memory[_NUM_STEPS])
        _renew(self._loads, self.survivals.quantiles(), float(self._context[0]), table)

    def _plan(self, table: CostTable, *, is_frozen: bool) -> None:
        _plan_all(self._loads, table, bool(is_frozen), self._words)

    def _state(self, load: int) -> LoadState:
        known = self._loads
        return LoadState(
            load,
            int(known.draft_tokens[load]),
            int(known.probe_period[load]),
            *(each[load].copy() for each in (known.gain, known.extra, known.evidence, known.seen)),
        )


@njit(cache=True, nogil=True)
def _renew(loads: Any, survivals: Any, context_tokens: float, table: Any) -> None:
    """Expect anew, and choose so where nothing was seen."""
    expect(loads, survivals, context_tokens, table)
    for load in range(NUM_LOADS):
        renew_speed(loads, load)
        if not loads.seen[load].any():
            loads.draft_tokens[load] = fastest_length(loads, load)
        loads.min_period[load] = affordable_period(loads, load, table)


@njit(cache=True, nogil=True)
def _plan_all(loads: Any, table: Any, is_frozen: bool, words: Any) -> None:
    for load in range(NUM_LOADS):
        words[load] = pack_plan(plan_at(loads, load, table, is_frozen))


@njit(cache=True, nogil=True)
def _follow(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    steps: Any,
    table: Any,
    loads: Any,
    memory: Any,
    strays: Any,
    context: Any,
    is_expected: bool,
    is_frozen: bool,
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
        memory[_NUM_STEPS] += 1
        _follow_context(context, steps.words[CONTEXT_TOKENS, step] / num_sampling)
        if _follow_load(loads, memory, strays, num_sampling) and not is_frozen:
            outcome_of(steps, step, table, gain, extra)
            known = max(min(num_known, len(gain)), 0)
            _learn(loads, memory[_LOAD], gain, extra, num_sampling, known, step_id, is_expected)
    return any_counted


@njit(cache=True, nogil=True)
def _follow_context(context: Any, of_request: float) -> None:
    share = _CONTEXT_SHARE if context[0] > 0.0 else 1.0
    context[0] += share * (of_request - context[0])


@njit(cache=True, nogil=True)
def _follow_load(loads: Any, memory: Any, strays: Any, num_sampling: int) -> bool:
    """Whether a step is of the load that counts as the present one, which may change to it."""
    memory[_NUM_STEPS_AT_LOAD] += 1
    nearest = nearest_load(memory[_LOAD], num_sampling)
    if memory[_LOAD] == NEVER:
        memory[_LOAD] = nearest
    if nearest == memory[_LOAD]:
        memory[_NUM_STRAYS] = 0
        return True
    strays[memory[_NUM_STRAYS]] = np.log2(float(num_sampling))
    memory[_NUM_STRAYS] += 1
    memory[_NUM_STEPS_AT_LOAD] = 0
    if memory[_NUM_STRAYS] < _STEPS_TO_MOVE:
        return False
    memory[_LOAD] = min(np.int64(np.rint(np.median(strays))), NUM_LOADS - 1)
    memory[_NUM_STRAYS] = 0
    age(loads, memory[_LOAD])
    probe_soon(loads, memory[_LOAD])
    return True


@njit(cache=True, nogil=True)
def _learn(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    loads: Any,
    load: int,
    gain: Any,
    extra: Any,
    num_sampling: int,
    num_known: int,
    step_id: int,
    is_expected: bool,
) -> None:
    """Take a step in and choose the length of its load anew."""
    if num_known > 0:
        learn(loads, load, gain, extra, num_sampling, num_known)
    worth_it = loads.speed[load, loads.draft_tokens[load]] * (1.0 + HYSTERESIS)
    observe_probe(loads, load, gain, extra, num_sampling, num_known, worth_it)
    best = best_length(loads, load, step_id, is_expected)
    if best != loads.draft_tokens[load]:
        loads.draft_tokens[load] = best
        loads.changed_at[load] = step_id
        probe_soon(loads, load)
