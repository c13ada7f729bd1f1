"""Arrays used without counting references: the same memory, and its owner none the wiser."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit
from specsched_scheduler.decision._borrowing import borrowed


class Pair(NamedTuple):
    counts: npt.NDArray[np.int64]
    curve: npt.NDArray[np.float64]


class Whole(NamedTuple):
    pair: Pair
    scale: float
    rows: npt.NDArray[np.float32]


@njit
def look_into(whole: Any) -> Any:
    """Rebinds, takes views and hands members on, which all count references of owned arrays."""
    whole = borrowed(whole)
    pair, total = whole.pair, 0.0
    for row in range(len(whole.rows)):
        values = whole.rows[row][1:]
        pair.counts[row] += len(values)
        total += values.sum() * whole.scale + pair.curve[row]
    return total


@njit
def lend(whole: Any, array: Any) -> Any:
    first = borrowed(array)
    return look_into(whole) + first[0] + borrowed(whole.scale)


def test_borrowed_arrays_are_the_same_memory_and_stay_owned() -> None:
    pair = Pair(np.zeros(3, np.int64), np.array([0.5, 1.0, 2.0]))
    whole = Whole(pair, 2.0, np.arange(12, dtype=np.float32).reshape(3, 4))
    arrays = (pair.counts, pair.curve, whole.rows)
    lend(whole, pair.curve)
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(50):
        assert lend(whole, pair.curve) == 2.0 * (66 - 12) + 3.5 + 0.5 + 2.0
    assert [sys.getrefcount(array) for array in arrays] == before
    assert pair.counts.tolist() == [3 * 51] * 3
