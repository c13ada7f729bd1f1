"""Decisions and the heartbeat: written by one scheduler, read by the executor.

The last two decisions are kept, so that deciding step t+1 never disturbs a read of step t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specsched_protocol.compiling import njit
from specsched_protocol.shm.atomics import (
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from specsched_protocol.shm.layout import (
    DECISION_WORDS,
    LANE_DECISION,
    LANE_DECISION_STRIDE,
    LANE_HEARTBEAT,
    NUM_BUFFERS,
)
from specsched_protocol.shm.seqlock import (
    EMPTY,
    OK,
    TORN,
    begin_read,
    begin_write,
    end_read,
    end_write,
)

__all__ = [
    "BUDGET",
    "DECIDED_NS",
    "EPOCH",
    "EXPECTED_MS_BITS",
    "EXPECTED_TOKENS_BITS",
    "FAIRNESS_BITS",
    "FLAGS",
    "MAX_VERIFY_LEN",
    "MODEL_STATE",
    "NEXT_DRAFT_TOKENS",
    "NUM_REPAIRED",
    "POLICY_ID",
    "SOURCE_STEP_ID",
    "STEP_ID",
    "beat",
    "heartbeat_ns",
    "read_decision",
    "write_decision",
]

# Words of a decision, in order. Word 0 is the step, by which it is found.
STEP_ID = 0
SOURCE_STEP_ID = 1
EPOCH = 2
BUDGET = 3
MAX_VERIFY_LEN = 4
NEXT_DRAFT_TOKENS = 5
EXPECTED_TOKENS_BITS = 6
EXPECTED_MS_BITS = 7
POLICY_ID = 8
MODEL_STATE = 9
FLAGS = 10
NUM_REPAIRED = 11
DECIDED_NS = 12
FAIRNESS_BITS = 13


@njit(cache=True, nogil=True)
def write_decision(words: Any, index: int, decision: Any) -> None:
    """Publish `decision`, int64 [DECISION_WORDS]; `index` counts them and picks the buffer."""
    base = LANE_DECISION + (index % NUM_BUFFERS) * LANE_DECISION_STRIDE
    odd = begin_write(words, base)
    for i in range(DECISION_WORDS):
        store_relaxed(words, base + 1 + i, decision[i])
    end_write(words, base, odd)


@njit(cache=True, nogil=True)
def read_decision(words: Any, step_id: int, max_tries: int, decision: Any) -> int:
    """Copy the decision for `step_id` into `decision`, int64 [DECISION_WORDS].

    Returns OK; EMPTY if neither buffer has one; TORN if one was being written during all tries.
    """
    torn = True
    for _ in range(max_tries):
        torn = False
        for buffer in range(NUM_BUFFERS):
            base = LANE_DECISION + buffer * LANE_DECISION_STRIDE
            begun = begin_read(words, base)
            for i in range(DECISION_WORDS):
                decision[i] = load_relaxed(words, base + 1 + i)
            if not end_read(words, base, begun):
                torn = True
            elif begun != 0 and decision[STEP_ID] == step_id:
                return OK
        if not torn:
            return EMPTY
    return TORN


@njit(cache=True, nogil=True)
def beat(words: Any, now_ns: int) -> None:
    """Tell that the planner was alive at `now_ns` (CLOCK_MONOTONIC)."""
    store_release(words, LANE_HEARTBEAT, np.int64(now_ns))


@njit(cache=True, nogil=True)
def heartbeat_ns(words: Any) -> Any:
    """When the planner last told that it was alive, 0 if never."""
    return load_acquire(words, LANE_HEARTBEAT)
