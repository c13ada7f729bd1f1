"""What was learned, on its way to the planner loop: changed between decisions, never during one.

Two buffers. The loop says at the begin of each decision which publication it goes by; the learner
fills the other buffer, and only once the loop goes by the newest one: what is read is never
written. The loop takes no lock and does not return to Python for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm.atomics import load_acquire, load_relaxed, store_relaxed, store_release

from specsched_scheduler.decision.calibration import CalibrationTable
from specsched_scheduler.decision.cost import CostTable

__all__ = [
    "LearnedBuffers",
    "Lesson",
    "ask_probe",
    "calibration_of",
    "cost_of",
    "has_room",
    "new_learned",
    "publish_learned",
    "take_probe",
    "take_publication",
    "wanted_probe",
]

# Words of LearnedBuffers.words.
_PUBLISHED = 0
"""Publications so far; the buffer of publication n is n % 2."""
_TAKEN = 1
"""The publication that the loop decides by."""
_PROBE_ROWS = 2
"""Rows to be tried in some step soon, 0 for none."""
_NUM_WORDS = 3

# Columns of LearnedBuffers.numbers: what is no array in a CostTable.
_VERIFY_SLOPE, _DRAFT_SLOPE, _CONTEXT, _PROFILED_CONTEXT, _NOISE, _HAS_MODEL = range(6)
_NUM_NUMBERS = 6


class Lesson(NamedTuple):
    """What decisions go by that can be learned."""

    calibration: CalibrationTable
    cost: CostTable


class LearnedBuffers(NamedTuple):
    """Two of each of what is learned, of one shape; first axis: the buffer.

    words: int64 [3]. numbers: float64 [2, 6]. The rest as in CalibrationTable and CostTable.
    """

    words: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    is_active: npt.NDArray[np.uint8]
    is_identity: npt.NDArray[np.int64]
    verify_ms: npt.NDArray[np.float64]
    verify_floor_ms: npt.NDArray[np.float64]
    stair_end: npt.NDArray[np.int64]
    draft_ms: npt.NDArray[np.float64]
    short_draft_tokens: npt.NDArray[np.int64]
    short_draft_ms: npt.NDArray[np.float64]
    short_draft_slope_ms: npt.NDArray[np.float64]


def new_learned(lesson: Lesson) -> LearnedBuffers:
    """Buffers that hold this."""
    calibration, cost = lesson

    def twice(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(np.stack([values, values]))

    return LearnedBuffers(
        words=np.zeros(_NUM_WORDS, dtype=np.int64),
        numbers=twice(_numbers(cost)),
        values=twice(calibration.values),
        is_active=twice(calibration.is_active),
        is_identity=np.full(2, calibration.is_identity, dtype=np.int64),
        verify_ms=twice(cost.verify_ms),
        verify_floor_ms=twice(cost.verify_floor_ms),
        stair_end=twice(cost.stair_end),
        draft_ms=twice(cost.draft_ms),
        short_draft_tokens=twice(cost.short_draft_tokens),
        short_draft_ms=twice(cost.short_draft_ms),
        short_draft_slope_ms=twice(cost.short_draft_slope_ms),
    )


# ===================== The learner's side: one thread at a time =====================


def publish_learned(learned: LearnedBuffers, lesson: Lesson) -> bool:
    """Have the next decision go by it; False, and nothing, if the last publication was not taken
    yet: the loop may still read the other buffer.

    Raises ValueError for a table of another shape.
    """
    calibration, cost = lesson
    buffer = int(_free_buffer(learned))
    if buffer < 0:
        return False
    learned.numbers[buffer] = _numbers(cost)
    learned.is_identity[buffer] = calibration.is_identity
    for name in ("values", "is_active"):
        getattr(learned, name)[buffer] = getattr(calibration, name)
    for name in (
        "verify_ms",
        "verify_floor_ms",
        "stair_end",
        "draft_ms",
        "short_draft_tokens",
        "short_draft_ms",
        "short_draft_slope_ms",
    ):
        getattr(learned, name)[buffer] = getattr(cost, name)
    _publish(learned)
    return True


def has_room(learned: LearnedBuffers) -> bool:
    """Whether something can be published."""
    return int(_free_buffer(learned)) >= 0


@njit(cache=True, nogil=True)
def ask_probe(learned: Any, num_rows: int) -> None:
    """Have a step of so many rows be run as soon as one can be; 0 takes the wish back."""
    store_relaxed(learned.words, _PROBE_ROWS, num_rows)


@njit(cache=True, nogil=True)
def _free_buffer(learned: Any) -> Any:
    """The buffer that may be filled, -1 while the loop may read either."""
    published = load_acquire(learned.words, _PUBLISHED)
    return (published + 1) & 1 if load_acquire(learned.words, _TAKEN) == published else -1


@njit(cache=True, nogil=True)
def _publish(learned: Any) -> None:
    store_release(learned.words, _PUBLISHED, load_relaxed(learned.words, _PUBLISHED) + 1)


def _numbers(cost: CostTable) -> npt.NDArray[np.float64]:
    numbers = np.zeros(_NUM_NUMBERS)
    numbers[_VERIFY_SLOPE] = cost.verify_slope_ms
    numbers[_DRAFT_SLOPE] = cost.draft_slope_ms
    numbers[_CONTEXT] = cost.context_ms_per_token
    numbers[_PROFILED_CONTEXT] = cost.profiled_context
    numbers[_NOISE] = cost.noise_ratio
    numbers[_HAS_MODEL] = cost.has_model
    return numbers


# ===================== The loop's side =====================


@njit(cache=True, nogil=True)
def take_publication(words: Any) -> Any:
    """Index of the buffer to decide by, until this is called again. words: of LearnedBuffers; a
    tuple of many arrays handed on makes much code."""
    published = load_acquire(words, _PUBLISHED)
    store_release(words, _TAKEN, published)
    return published & 1


@njit(cache=True, nogil=True)
def _as_int64(value: Any) -> Any:
    return np.int64(value)


@njit(cache=True, nogil=True)
def calibration_of(learned: Any, buffer: int) -> Any:
    """The CalibrationTable of a buffer."""
    return CalibrationTable(
        learned.values[buffer], learned.is_active[buffer], learned.is_identity[buffer]
    )


@njit(cache=True, nogil=True)
def cost_of(learned: Any, buffer: int) -> Any:
    """The CostTable of a buffer."""
    numbers = learned.numbers[buffer]
    return CostTable(
        learned.verify_ms[buffer],
        learned.verify_floor_ms[buffer],
        learned.stair_end[buffer],
        numbers[_VERIFY_SLOPE],
        learned.draft_ms[buffer],
        numbers[_DRAFT_SLOPE],
        learned.short_draft_tokens[buffer],
        learned.short_draft_ms[buffer],
        learned.short_draft_slope_ms[buffer],
        numbers[_CONTEXT],
        numbers[_PROFILED_CONTEXT],
        _as_int64(numbers[_HAS_MODEL]),
        numbers[_NOISE],
    )


@njit(cache=True, nogil=True)
def wanted_probe(words: Any) -> Any:
    """Rows to be tried, 0 for none."""
    return load_relaxed(words, _PROBE_ROWS)


@njit(cache=True, nogil=True)
def take_probe(words: Any) -> None:
    """The rows wanted are run in this step."""
    store_relaxed(words, _PROBE_ROWS, 0)
