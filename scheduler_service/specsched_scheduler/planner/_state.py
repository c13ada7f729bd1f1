"""What the planner loop works on, as nopython code takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.fairness import RecentTokens
from specsched_protocol.shm import ExecutorLayout
from specsched_protocol.shm.atomics import load_relaxed, store_relaxed, store_release
from specsched_protocol.shm.plan_arrays import (
    GatheredConfidences,
    RequestArrays,
    new_gathered_confidences,
    new_request_arrays,
)

from specsched_scheduler.decision.draft_length import (
    NEVER,
    NUM_LOADS,
    DraftLengthPlan,
    pack_plan,
)
from specsched_scheduler.decision.step import PolicyRule
from specsched_scheduler.decision.workspace import (
    RunningMean,
    Workspace,
    new_running_mean,
    new_workspace,
)
from specsched_scheduler.planner._history import ConfidenceHistory, new_history
from specsched_scheduler.planner._latency import NUM_BUCKETS
from specsched_scheduler.planner._ring import ENTRY_WORDS, new_ring
from specsched_scheduler.planner._tape import StepTape, new_tape

__all__ = [
    "LoopState",
    "Settings",
    "SharedWords",
    "add_to",
    "new_loop_state",
    "set_draft_plans",
    "set_generation",
]

# Words of LoopState.counters.
NUM_DECISIONS = 0
NUM_MISSED = 1
NUM_TORN = 2
NUM_INVALID = 3
NUM_REPAIRED = 4
NUM_MISSING_CONFIDENCES = 5
NUM_POLICY_ERRORS = 6
LAST_STEP_ID = 7
SEEN_PUBLICATION = 8
SEEN_NS = 9
IS_RAW = 10
"""1 where the step is decided by its confidences as published, 0 by `calibrated`."""
LOAD = 11
"""Log2 of the batch size that drafts are planned for."""
_NUM_COUNTERS = 12


class Settings(NamedTuple):
    """What Python sets; the loop returns when `generation` is no longer the current one.

    Descriptors: doorbell_fd of the executor, wake_fd of this process, decided_fd of whoever passes
    decisions on (-1: nobody), learner_fd of the learner, all non-blocking eventfds. The learner is
    woken after every steps_per_lesson steps: most of what it costs is a wake-up's.
    """

    generation: int
    epoch: int
    policy_id: int
    rule: PolicyRule
    doorbell_fd: int
    wake_fd: int
    decided_fd: int
    learner_fd: int
    steps_per_lesson: int
    spin_ns: int
    poll_ms: int


class SharedWords(NamedTuple):
    """The mapped regions. executor: int64, read-only; lane: int64, written by the planner alone."""

    executor: npt.NDArray[np.int64]
    lane: npt.NDArray[np.int64]
    layout: ExecutorLayout


class LoopState(NamedTuple):
    """The loop's memory, private to this process. One thread writes it, any may read.

    generation: int64 [1], the current one, stored by Python. counters, histogram, ring: int64.
    request, gathered: the step being decided. calibrated: float32 [R, k] and
    sampling_class: uint8 [R], the same step's. history: for the learner. tape: for whoever records.
    entry, scratch: int64 scratch. Stored by Python: draft_plans, int64 [NUM_LOADS], see
    DraftLength; recent float64 [max_requests] and recent_generation int64
    [max_requests], see specsched_protocol.fairness.
    """

    generation: npt.NDArray[np.int64]
    counters: npt.NDArray[np.int64]
    histogram: npt.NDArray[np.int64]
    ring: npt.NDArray[np.int64]
    request: RequestArrays
    gathered: GatheredConfidences
    calibrated: npt.NDArray[np.float32]
    sampling_class: npt.NDArray[np.uint8]
    history: ConfidenceHistory
    tape: StepTape
    prior: RunningMean
    workspace: Workspace
    entry: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.int64]
    draft_plans: npt.NDArray[np.int64]
    recent: npt.NDArray[np.float64]
    recent_generation: npt.NDArray[np.int64]


def new_loop_state(
    layout: ExecutorLayout, recent: RecentTokens, *, is_recording: bool = False
) -> LoopState:
    """Memory for the steps of one executor; `recent` is read in place."""
    full_drafts = DraftLengthPlan(layout.max_draft_tokens, 0, layout.max_draft_tokens)
    counters = np.zeros(_NUM_COUNTERS, dtype=np.int64)
    counters[LOAD] = NEVER
    return LoopState(
        generation=np.zeros(1, dtype=np.int64),
        counters=counters,
        histogram=np.zeros(NUM_BUCKETS, dtype=np.int64),
        ring=new_ring(),
        request=new_request_arrays(layout),
        gathered=new_gathered_confidences(layout),
        calibrated=np.full((layout.max_requests, layout.max_draft_tokens), np.nan, np.float32),
        sampling_class=np.zeros(layout.max_requests, dtype=np.uint8),
        history=new_history(layout),
        tape=new_tape(layout, is_recording=is_recording),
        prior=new_running_mean(layout.max_draft_tokens),
        workspace=new_workspace(layout.max_requests, layout.max_draft_tokens),
        entry=np.zeros(ENTRY_WORDS, dtype=np.int64),
        scratch=np.zeros(2, dtype=np.int64),
        draft_plans=np.full(NUM_LOADS, pack_plan(full_drafts), dtype=np.int64),
        recent=recent.recent,
        recent_generation=recent.generation,
    )


@njit(cache=True, nogil=True)
def add_to(counters: Any, counter: int, amount: int) -> None:
    """Add to a counter of which this thread is the only writer."""
    store_relaxed(counters, counter, load_relaxed(counters, counter) + amount)


@njit(cache=True, nogil=True)
def set_generation(state: Any, generation: int) -> None:
    """Make `generation` the current one; the loop returns when it next looks."""
    store_release(state.generation, 0, generation)


@njit(cache=True, nogil=True)
def set_draft_plans(state: Any, words: Any) -> None:
    """Draft by these plans, int64 [NUM_LOADS] of `pack_plan`, from the next decision on."""
    for load in range(len(words)):
        store_relaxed(state.draft_plans, load, words[load])
