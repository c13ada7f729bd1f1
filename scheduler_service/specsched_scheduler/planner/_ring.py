"""The last decisions, kept in the scheduler's own memory for whoever watches.

Written by the planner loop, read by Python threads: the same sequence lock as between processes,
for the loop does not hold the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit
from specsched_protocol.shm.atomics import load_acquire, load_relaxed, store_relaxed, store_release
from specsched_protocol.shm.layout import DECISION_WORDS
from specsched_protocol.shm.seqlock import begin_read, begin_write, end_read, end_write

__all__ = [
    "ENTRY_WORDS",
    "INDEX",
    "NUM_DRAFTS",
    "NUM_REQUESTS",
    "PLAN_NS",
    "RING_SLOTS",
    "append",
    "new_ring",
    "newest_index",
    "read_after",
]

RING_SLOTS = 1024

# An entry is the decision's words and these.
INDEX = DECISION_WORDS
NUM_REQUESTS = DECISION_WORDS + 1
NUM_DRAFTS = DECISION_WORDS + 2
PLAN_NS = DECISION_WORDS + 3
ENTRY_WORDS = DECISION_WORDS + 4

_STRIDE = 1 + ENTRY_WORDS


def new_ring() -> npt.NDArray[np.int64]:
    """Word 0 is the newest index; the slots follow."""
    return np.zeros(1 + RING_SLOTS * _STRIDE, dtype=np.int64)


@njit(cache=True, nogil=True)
def append(ring: Any, entry: Any) -> None:
    """Add `entry`, int64 [ENTRY_WORDS], under the index it carries: 1, 2, ..."""
    base = 1 + (entry[INDEX] % RING_SLOTS) * _STRIDE
    odd = begin_write(ring, base)
    for i in range(ENTRY_WORDS):
        store_relaxed(ring, base + 1 + i, entry[i])
    end_write(ring, base, odd)
    store_release(ring, 0, entry[INDEX])


@njit(cache=True, nogil=True)
def newest_index(ring: Any) -> Any:
    """Index of the newest entry, 0 for none."""
    return load_acquire(ring, 0)


@njit(cache=True, nogil=True)
def read_after(ring: Any, after: int, out: Any) -> Any:
    """Copy the newest entries with an index above `after` to `out`, int64 [n, ENTRY_WORDS].

    Returns how many, oldest first. Entries being overwritten meanwhile are left out.
    """
    newest = load_acquire(ring, 0)
    first = max(after, newest - min(RING_SLOTS, out.shape[0]), 0) + 1
    count = 0
    for index in range(first, newest + 1):
        base = 1 + (index % RING_SLOTS) * _STRIDE
        begun = begin_read(ring, base)
        for i in range(ENTRY_WORDS):
            out[count, i] = load_relaxed(ring, base + 1 + i)
        if end_read(ring, base, begun) and out[count, INDEX] == index:
            count += 1
    return count
