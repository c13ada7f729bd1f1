"""Whole steps as the planner loop saw and decided them, kept for whoever records them.

A queue of one writer, the loop, which never waits, and one reader. A step is put in after its
decision was published, so recording delays no plan. Without room a step is left out and counted. A
tape of no length records nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm import ExecutorLayout
from specsched_protocol.shm.atomics import load_acquire, load_relaxed, store_relaxed, store_release
from specsched_protocol.shm.layout import REQUEST_FIXED_WORDS
from specsched_protocol.shm.plan_arrays import NUM_REQUESTS

from specsched_scheduler.planner._recent import unpack_entry
from specsched_scheduler.planner._ring import ENTRY_WORDS
from specsched_scheduler.planner.records import RecentDecision

__all__ = ["StepTape", "TapedStep", "append_step", "drain_steps", "new_tape"]

_HEAD, _TAIL, _DROPPED = range(3)
_MAX_STEPS = 64
_MAX_BYTES = 16 << 20


class StepTape(NamedTuple):
    """S steps of up to R rows. words: int64 [3]; fixed, entry: int64 [S, *]; the rest [S, R]."""

    words: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.int64]
    entry: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    samples: npt.NDArray[np.uint8]
    is_greedy: npt.NDArray[np.uint8]
    weight: npt.NDArray[np.float32]
    context_tokens: npt.NDArray[np.uint32]
    num_confidences: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TapedStep:
    """One step: the words of its plan request, its rows, and the decision on it."""

    fixed: npt.NDArray[np.int64]
    decision: RecentDecision
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    samples: npt.NDArray[np.uint8]
    is_greedy: npt.NDArray[np.uint8]
    weight: npt.NDArray[np.float32]
    context_tokens: npt.NDArray[np.uint32]
    num_confidences: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]


_ROWS = tuple(name for name in StepTape._fields if name not in {"words", "fixed", "entry"})


def new_tape(layout: ExecutorLayout, *, is_recording: bool) -> StepTape:
    """Room for 64 steps, fewer where that would take more than 16 MiB; none unless recording."""
    rows, k = layout.max_requests, layout.max_draft_tokens
    fitting = max(4, min(_MAX_STEPS, _MAX_BYTES // (rows * (4 * k + 34))))
    shape = (fitting if is_recording else 0, rows)
    return StepTape(
        words=np.zeros(3, dtype=np.int64),
        fixed=np.zeros((shape[0], REQUEST_FIXED_WORDS), dtype=np.int64),
        entry=np.zeros((shape[0], ENTRY_WORDS), dtype=np.int64),
        slot_id=np.zeros(shape, dtype=np.uint32),
        generation=np.zeros(shape, dtype=np.uint32),
        num_draft_tokens=np.zeros(shape, dtype=np.uint32),
        samples=np.zeros(shape, dtype=np.uint8),
        is_greedy=np.zeros(shape, dtype=np.uint8),
        weight=np.zeros(shape, dtype=np.float32),
        context_tokens=np.zeros(shape, dtype=np.uint32),
        num_confidences=np.zeros(shape, dtype=np.int64),
        confidence=np.zeros((*shape, k), dtype=np.float32),
    )


@njit(cache=True, nogil=True)
def append_step(tape: Any, request: Any, num_valid: Any, confidence: Any, entry: Any) -> None:
    """Keep the step just decided, unless there is no room. confidence: what it was decided by."""
    num_steps = len(tape.fixed)
    if num_steps == 0:
        return
    head = load_relaxed(tape.words, _HEAD)
    if head - load_acquire(tape.words, _TAIL) >= num_steps:
        store_relaxed(tape.words, _DROPPED, load_relaxed(tape.words, _DROPPED) + 1)
        return
    step = head % num_steps
    tape.fixed[step] = request.fixed
    tape.entry[step] = entry
    for row in range(request.fixed[NUM_REQUESTS]):
        tape.slot_id[step, row] = request.slot_id[row]
        tape.generation[step, row] = request.generation[row]
        tape.num_draft_tokens[step, row] = request.num_draft_tokens[row]
        tape.samples[step, row] = request.samples[row]
        tape.is_greedy[step, row] = request.is_greedy[row]
        tape.weight[step, row] = request.weight[row]
        tape.context_tokens[step, row] = request.context_tokens[row]
        tape.num_confidences[step, row] = num_valid[row]
        tape.confidence[step, row] = confidence[row]
    store_release(tape.words, _HEAD, head + 1)


def drain_steps(tape: StepTape) -> tuple[list[TapedStep], int]:
    """(the steps that came since the last call, oldest first; steps left out since the begin)."""
    tail, head, num_dropped = _waiting(tape.words)
    steps = [_copy(tape, index % len(tape.fixed)) for index in range(tail, head)]
    _give_back(tape.words, head)
    return steps, int(num_dropped)


@njit(cache=True, nogil=True)
def _waiting(words: Any) -> Any:
    return load_relaxed(words, _TAIL), load_acquire(words, _HEAD), load_relaxed(words, _DROPPED)


@njit(cache=True, nogil=True)
def _give_back(words: Any, head: int) -> None:
    store_release(words, _TAIL, head)


def _copy(tape: StepTape, step: int) -> TapedStep:
    rows = slice(int(tape.fixed[step, NUM_REQUESTS]))
    columns = {name: getattr(tape, name)[step, rows].copy() for name in _ROWS}
    return TapedStep(tape.fixed[step].copy(), unpack_entry(tape.entry[step].copy()), **columns)
