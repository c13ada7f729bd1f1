"""Plan requests and confidences outside of a region, in the form nopython code takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specsched_protocol.shm.layout import REQUEST_FIXED_WORDS, ExecutorLayout

__all__ = [
    "CONFIDENCE_INDEX",
    "MAX_BUDGET",
    "NUM_OTHER_TOKENS",
    "NUM_PREFILL_TOKENS",
    "NUM_REQUESTS",
    "PUBLICATION",
    "PUBLISHED_NS",
    "ROWS_INDEX",
    "ROWS_NUM_ROWS",
    "ROWS_SOURCE_STEP_ID",
    "SOURCE_STEP_ID",
    "STEP_ID",
    "ConfidenceArrays",
    "GatheredConfidences",
    "RequestArrays",
    "new_confidence_arrays",
    "new_gathered_confidences",
    "new_request_arrays",
]

# Fixed words of a plan request, in order.
PUBLICATION = 0
"""1, 2, ... counts plan requests."""
STEP_ID = 1
SOURCE_STEP_ID = 2
NUM_OTHER_TOKENS = 3
NUM_PREFILL_TOKENS = 4
MAX_BUDGET = 5
NUM_REQUESTS = 6
CONFIDENCE_INDEX = 7
"""Which confidence publication goes with it; 0 for none."""
PUBLISHED_NS = 8
"""CLOCK_MONOTONIC when it was published."""


# Fixed words of confidences to publish.
ROWS_INDEX = 0
"""1, 2, ... counts confidence publications."""
ROWS_SOURCE_STEP_ID = 1
ROWS_NUM_ROWS = 2


class ConfidenceArrays(NamedTuple):
    """Rows to publish, of which fixed[ROWS_NUM_ROWS] count. fixed: int64 [3]; the rest [R], [R, k].

    See specsched_protocol.plan.ConfidenceRows.
    """

    fixed: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    confidence: npt.NDArray[np.float32]


class RequestArrays(NamedTuple):
    """A plan request of fixed[NUM_REQUESTS] rows. fixed: int64 [9]; the rest [R].

    See specsched_protocol.plan.PlanRequest.
    """

    fixed: npt.NDArray[np.int64]
    slot_id: npt.NDArray[np.uint32]
    generation: npt.NDArray[np.uint32]
    num_draft_tokens: npt.NDArray[np.uint32]
    samples: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float32]
    context_tokens: npt.NDArray[np.uint32]
    is_greedy: npt.NDArray[np.bool_]


class GatheredConfidences(NamedTuple):
    """Confidences in the order of a request's rows.

    num_valid: int64 [R], positions published for the row, 0 where it is of another step or
    generation. confidence: float32 [R, k], NaN from num_valid on.
    """

    num_valid: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32]


def new_confidence_arrays(layout: ExecutorLayout) -> ConfidenceArrays:
    """Room for the confidences of every row of a region."""
    num_rows = layout.max_requests
    return ConfidenceArrays(
        fixed=np.zeros(3, dtype=np.int64),
        slot_id=np.zeros(num_rows, dtype=np.uint32),
        generation=np.zeros(num_rows, dtype=np.uint32),
        num_draft_tokens=np.zeros(num_rows, dtype=np.uint32),
        confidence=np.zeros((num_rows, layout.max_draft_tokens), dtype=np.float32),
    )


def new_request_arrays(layout: ExecutorLayout) -> RequestArrays:
    """Room for any plan request of a region."""
    num_rows = layout.max_requests
    return RequestArrays(
        fixed=np.zeros(REQUEST_FIXED_WORDS, dtype=np.int64),
        slot_id=np.zeros(num_rows, dtype=np.uint32),
        generation=np.zeros(num_rows, dtype=np.uint32),
        num_draft_tokens=np.zeros(num_rows, dtype=np.uint32),
        samples=np.zeros(num_rows, dtype=np.bool_),
        weight=np.zeros(num_rows, dtype=np.float32),
        context_tokens=np.zeros(num_rows, dtype=np.uint32),
        is_greedy=np.zeros(num_rows, dtype=np.bool_),
    )


def new_gathered_confidences(layout: ExecutorLayout) -> GatheredConfidences:
    """Room for the confidences of any plan request of a region."""
    shape = (layout.max_requests, layout.max_draft_tokens)
    return GatheredConfidences(
        num_valid=np.zeros(layout.max_requests, dtype=np.int64),
        confidence=np.full(shape, np.nan, dtype=np.float32),
    )
