"""Confidences that the planner loop saw, kept for the learner to join with their outcomes.

A queue of one writer, the loop, and one reader. The writer never waits: where the reader is too far
behind, a step is left out and counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm import ExecutorLayout
from specsched_protocol.shm.atomics import load_acquire, load_relaxed, store_relaxed, store_release
from specsched_protocol.shm.plan_arrays import NUM_REQUESTS, SOURCE_STEP_ID

from specsched_scheduler.learning.pairing import DraftedSteps

__all__ = [
    "ConfidenceHistory",
    "append_confidences",
    "drain_confidences",
    "new_history",
    "room_for_steps",
]

# Words of ConfidenceHistory.words.
_HEAD = 0
"""Steps written."""
_TAIL = 1
"""Steps read."""
_DROPPED = 2
_NUM_WORDS = 3

_MAX_BYTES = 8 << 20
_MIN_STEPS, _MAX_STEPS = 4, 128


class ConfidenceHistory(NamedTuple):
    """S steps of up to R rows each.

    words: int64 [3]. source_step_id, num_rows: int64 [S]. slot_id, generation: uint32 [S, R];
    is_greedy: bool [S, R]; confidence: float32 [S, R, k], as published, NaN where there is none.
    """

    words: npt.NDArray[np.int64]
    source_step_id: npt.NDArray[np.int64]
    num_rows: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    is_greedy: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32]


def new_history(layout: ExecutorLayout) -> ConfidenceHistory:
    """Room for 128 steps, fewer where that would take more than 8 MiB."""
    rows, k = layout.max_requests, layout.max_draft_tokens
    num_steps = min(max(_MAX_BYTES // (rows * (4 * k + 9)), _MIN_STEPS), _MAX_STEPS)
    return ConfidenceHistory(
        words=np.zeros(_NUM_WORDS, dtype=np.int64),
        source_step_id=np.zeros(num_steps, dtype=np.int64),
        num_rows=np.zeros(num_steps, dtype=np.int64),
        slot_id=np.zeros((num_steps, rows), dtype=np.uint32),
        generation=np.zeros((num_steps, rows), dtype=np.uint32),
        is_greedy=np.zeros((num_steps, rows), dtype=np.bool_),
        confidence=np.zeros((num_steps, rows, k), dtype=np.float32),
    )


def room_for_steps(history: ConfidenceHistory) -> int:
    """How many steps fit in."""
    return len(history.num_rows)


@njit(cache=True, nogil=True)
def append_confidences(history: Any, request: Any, gathered: Any) -> None:
    """Keep the rows of a step that have confidences, unless there is no room."""
    words = history.words
    head = load_relaxed(words, _HEAD)
    if head - load_acquire(words, _TAIL) >= len(history.num_rows):
        store_relaxed(words, _DROPPED, load_relaxed(words, _DROPPED) + 1)
        return
    step = head % len(history.num_rows)
    num_rows = 0
    for row in range(request.fixed[NUM_REQUESTS]):
        if gathered.num_valid[row] > 0:
            history.slot_id[step, num_rows] = request.slot_id[row]
            history.generation[step, num_rows] = request.generation[row]
            history.is_greedy[step, num_rows] = request.is_greedy[row]
            history.confidence[step, num_rows] = gathered.confidence[row]
            num_rows += 1
    if num_rows > 0:
        history.source_step_id[step] = request.fixed[SOURCE_STEP_ID]
        history.num_rows[step] = num_rows
        store_release(words, _HEAD, head + 1)


def drain_confidences(history: ConfidenceHistory) -> tuple[DraftedSteps, int]:
    """(the steps that came since the last call, oldest first; steps left out since the begin)."""
    tail, head, num_rows, num_dropped = _waiting(history)
    steps = DraftedSteps(
        np.empty(head - tail, dtype=np.int64),
        np.zeros(head - tail + 1, dtype=np.int64),
        np.empty(num_rows, dtype=np.uint32),
        np.empty(num_rows, dtype=np.uint32),
        np.empty(num_rows, dtype=np.bool_),
        np.empty((num_rows, history.confidence.shape[2]), dtype=np.float32),
    )
    _take(history, tail, head, steps)
    return steps, int(num_dropped)


@njit(cache=True, nogil=True)
def _waiting(history: Any) -> Any:
    """(steps read, steps written, rows of those between, steps left out)."""
    words = history.words
    tail, head = load_relaxed(words, _TAIL), load_acquire(words, _HEAD)
    num_rows = 0
    for index in range(tail, head):
        num_rows += history.num_rows[index % len(history.num_rows)]
    return tail, head, num_rows, load_relaxed(words, _DROPPED)


@njit(cache=True, nogil=True)
def _take(history: Any, tail: int, head: int, out: Any) -> None:
    """Copy the steps tail..head to `out`, DraftedSteps, and give their room back."""
    end = 0
    for index in range(tail, head):
        step = index % len(history.num_rows)
        num_rows = history.num_rows[step]
        out.source_step_id[index - tail] = history.source_step_id[step]
        out.slot_id[end : end + num_rows] = history.slot_id[step, :num_rows]
        out.generation[end : end + num_rows] = history.generation[step, :num_rows]
        out.is_greedy[end : end + num_rows] = history.is_greedy[step, :num_rows]
        out.confidence[end : end + num_rows] = history.confidence[step, :num_rows]
        end += num_rows
        out.row_begin[index - tail + 1] = end
    store_release(history.words, _TAIL, head)
