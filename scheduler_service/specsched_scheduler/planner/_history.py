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

from specsched_scheduler.learning.pairing import StepConfidences

__all__ = ["ConfidenceHistory", "append_confidences", "drain_confidences", "new_history"]

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


def drain_confidences(history: ConfidenceHistory) -> tuple[list[StepConfidences], int]:
    """(the steps that came since the last call, oldest first; steps left out since the begin)."""
    tail, head, num_dropped = _waiting(history)
    steps = [_copy(history, index % len(history.num_rows)) for index in range(tail, head)]
    _give_back(history, head)
    return steps, int(num_dropped)


@njit(cache=True, nogil=True)
def _waiting(history: Any) -> Any:
    words = history.words
    return load_relaxed(words, _TAIL), load_acquire(words, _HEAD), load_relaxed(words, _DROPPED)


@njit(cache=True, nogil=True)
def _give_back(history: Any, head: int) -> None:
    store_release(history.words, _TAIL, head)


def _copy(history: ConfidenceHistory, step: int) -> StepConfidences:
    rows = slice(int(history.num_rows[step]))
    return StepConfidences(
        source_step_id=int(history.source_step_id[step]),
        slot_id=history.slot_id[step, rows].copy(),
        generation=history.generation[step, rows].copy(),
        is_greedy=history.is_greedy[step, rows].copy(),
        confidence=history.confidence[step, rows].copy(),
    )
