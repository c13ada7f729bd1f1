"""Confidences and plan requests: written by the executor, read by every scheduler.

Publication n lies in request buffer n % 2 and names, by its index, the confidence buffer that goes
with it. The reader unpacks into private arrays inside the sequence lock and checks the values
afterwards: what was checked cannot change any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specsched_protocol.compiling import njit
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm.atomics import (
    bits_to_float32,
    float32_to_bits,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from specsched_protocol.shm.layout import (
    CONFIDENCE_FIXED_WORDS,
    CONFIDENCE_ROW_FIXED_WORDS,
    NUM_BUFFERS,
    REQUEST_FIXED_WORDS,
    REQUEST_ROW_WORDS,
)
from specsched_protocol.shm.plan_arrays import (
    CONFIDENCE_INDEX,
    MAX_BUDGET,
    NUM_OTHER_TOKENS,
    NUM_PREFILL_TOKENS,
    NUM_REQUESTS,
    PUBLICATION,
    ROWS_INDEX,
    ROWS_NUM_ROWS,
    ROWS_SOURCE_STEP_ID,
    SOURCE_STEP_ID,
    STEP_ID,
)
from specsched_protocol.shm.seqlock import (
    EMPTY,
    INVALID,
    OK,
    TORN,
    begin_read,
    begin_write,
    end_read,
    end_write,
)

__all__ = [
    "are_valid_confidences",
    "is_valid_request",
    "latest_publication",
    "publish_request",
    "read_confidences",
    "read_request",
    "write_confidences",
]

_LOW = 0xFFFF_FFFF
_SAMPLES_BIT = 32
_GREEDY_BIT = 33
_MAX_STEP_TOKENS = 1 << 31
_MIN_SOURCE_DISTANCE = 2  # lossless invariant: a plan for t uses confidences of t-2 or older


# ===================== Executor =====================


@njit(cache=True, nogil=True)
def write_confidences(words: Any, layout: Any, rows: Any) -> None:
    """Publish `rows`, ConfidenceArrays, in the buffer that their index picks."""
    index = rows.fixed[ROWS_INDEX]
    source_step_id = rows.fixed[ROWS_SOURCE_STEP_ID]
    base = layout.confidence + (index % NUM_BUFFERS) * layout.confidence_stride
    odd = begin_write(words, base)
    store_relaxed(words, base + 1, index)
    store_relaxed(words, base + 2, source_step_id)
    for row in range(rows.fixed[ROWS_NUM_ROWS]):
        slot = np.int64(rows.slot_id[row])
        at = base + 1 + CONFIDENCE_FIXED_WORDS + slot * layout.confidence_row_words
        drafts = np.int64(rows.num_draft_tokens[row])
        store_relaxed(words, at, source_step_id)
        store_relaxed(words, at + 1, np.int64(rows.generation[row]) | (drafts << 32))
        at += CONFIDENCE_ROW_FIXED_WORDS
        for position in range(0, drafts, 2):
            pair = float32_to_bits(rows.confidence[row, position])
            if position + 1 < drafts:
                pair |= float32_to_bits(rows.confidence[row, position + 1]) << 32
            store_relaxed(words, at + position // 2, pair)
    end_write(words, base, odd)


@njit(cache=True, nogil=True)
def publish_request(words: Any, layout: Any, request: Any) -> None:
    """Publish `request`, RequestArrays checked by the caller, and make it the latest."""
    publication = request.fixed[PUBLICATION]
    base = layout.request + (publication % NUM_BUFFERS) * layout.request_stride
    odd = begin_write(words, base)
    for i in range(REQUEST_FIXED_WORDS):
        store_relaxed(words, base + 1 + i, request.fixed[i])
    for row in range(request.fixed[NUM_REQUESTS]):
        at = base + 1 + REQUEST_FIXED_WORDS + row * REQUEST_ROW_WORDS
        generation = np.int64(request.generation[row]) << 32
        store_relaxed(words, at, np.int64(request.slot_id[row]) | generation)
        samples = np.int64(request.samples[row]) << _SAMPLES_BIT
        is_greedy = np.int64(request.is_greedy[row]) << _GREEDY_BIT
        drafts = np.int64(request.num_draft_tokens[row])
        store_relaxed(words, at + 1, drafts | samples | is_greedy)
        context = np.int64(request.context_tokens[row]) << 32
        store_relaxed(words, at + 2, float32_to_bits(request.weight[row]) | context)
    end_write(words, base, odd)
    store_release(words, layout.publication, publication)


# ===================== Scheduler =====================


@njit(cache=True, nogil=True)
def latest_publication(words: Any, layout: Any) -> Any:
    """Index of the newest plan request, 0 before the first. Fit to be polled."""
    return load_acquire(words, layout.publication)


@njit(cache=True, nogil=True)
def read_request(words: Any, layout: Any, publication: int, max_tries: int, out: Any) -> int:
    """Copy plan request `publication` into `out`, RequestArrays of max_requests rows.

    Returns OK; EMPTY if another publication lies there; TORN after `max_tries`; INVALID if a value
    is out of range. Only after OK is `out`, up to fixed[NUM_REQUESTS], good.
    """
    base = layout.request + (publication % NUM_BUFFERS) * layout.request_stride
    for _ in range(max_tries):
        begun = begin_read(words, base)
        _load_request(words, layout, base, out)
        if end_read(words, base, begun):
            if out.fixed[PUBLICATION] != publication:
                return EMPTY
            return OK if is_valid_request(layout, out) else INVALID
    return TORN


@njit(cache=True, nogil=True)
def read_confidences(words: Any, layout: Any, request: Any, max_tries: int, out: Any) -> int:
    """Copy the confidences that `request`, RequestArrays read with OK, names, gathered by slot.

    out: GatheredConfidences of max_requests rows. The values are not judged here, only NaN stands
    where none was published. Returns OK; EMPTY if the publication is not there; TORN.
    """
    index = request.fixed[CONFIDENCE_INDEX]
    base = layout.confidence + (index % NUM_BUFFERS) * layout.confidence_stride
    for _ in range(max_tries):
        begun = begin_read(words, base)
        is_named = load_relaxed(words, base + 1) == index
        is_named &= load_relaxed(words, base + 2) == request.fixed[SOURCE_STEP_ID]
        for row in range(request.fixed[NUM_REQUESTS]):
            _load_confidence_row(words, layout, base, request, row, out)
        if end_read(words, base, begun):
            return OK if is_named else EMPTY
    return TORN


@njit(cache=True, nogil=True)
def _load_request(words: Any, layout: Any, base: int, out: Any) -> None:
    for i in range(REQUEST_FIXED_WORDS):
        out.fixed[i] = load_relaxed(words, base + 1 + i)
    # A torn count must not lead out of the block.
    for row in range(min(max(out.fixed[NUM_REQUESTS], 0), layout.max_requests)):
        at = base + 1 + REQUEST_FIXED_WORDS + row * REQUEST_ROW_WORDS
        word = load_relaxed(words, at)
        out.slot_id[row] = word & _LOW
        out.generation[row] = (word >> 32) & _LOW
        word = load_relaxed(words, at + 1)
        out.num_draft_tokens[row] = word & _LOW
        out.samples[row] = (word >> _SAMPLES_BIT) & 1
        out.is_greedy[row] = (word >> _GREEDY_BIT) & 1
        word = load_relaxed(words, at + 2)
        out.weight[row] = bits_to_float32(word & _LOW)
        out.context_tokens[row] = (word >> 32) & _LOW


@njit(cache=True, nogil=True)
def _load_confidence_row(  # noqa: PLR0917 - nopython code has no keywords worth their cost
    words: Any, layout: Any, base: int, request: Any, row: int, out: Any
) -> None:
    slot = np.int64(request.slot_id[row])
    at = base + 1 + CONFIDENCE_FIXED_WORDS + slot * layout.confidence_row_words
    word = load_relaxed(words, at + 1)
    is_current = load_relaxed(words, at) == request.fixed[SOURCE_STEP_ID]
    is_current &= (word & _LOW) == np.int64(request.generation[row])
    num_valid = min((word >> 32) & _LOW, layout.max_draft_tokens) if is_current else 0
    out.num_valid[row] = num_valid
    at += CONFIDENCE_ROW_FIXED_WORDS
    for position in range(num_valid):
        pair = load_relaxed(words, at + position // 2)
        out.confidence[row, position] = bits_to_float32((pair >> (32 * (position % 2))) & _LOW)
    for position in range(num_valid, layout.max_draft_tokens):
        out.confidence[row, position] = np.nan


# ===================== Checks, for both ends =====================


@njit(cache=True, nogil=True)
def are_valid_confidences(layout: Any, rows: Any) -> Any:
    """Whether every count and index of `rows`, ConfidenceArrays, is in range."""
    is_valid = 0 <= rows.fixed[ROWS_NUM_ROWS] <= layout.max_requests
    is_valid &= rows.fixed[ROWS_SOURCE_STEP_ID] >= 0
    for row in range(rows.fixed[ROWS_NUM_ROWS] if is_valid else 0):
        is_valid &= np.int64(rows.slot_id[row]) < layout.max_requests
        is_valid &= np.int64(rows.num_draft_tokens[row]) <= layout.max_draft_tokens
    return is_valid


@njit(cache=True, nogil=True)
def is_valid_request(layout: Any, request: Any) -> Any:
    """Whether every count, index and weight of `request`, RequestArrays, is in range."""
    fixed = request.fixed
    is_valid = 0 <= fixed[NUM_REQUESTS] <= layout.max_requests
    is_valid &= 0 <= fixed[SOURCE_STEP_ID] <= fixed[STEP_ID] - _MIN_SOURCE_DISTANCE
    is_valid &= 0 <= fixed[NUM_PREFILL_TOKENS] <= fixed[NUM_OTHER_TOKENS] <= _MAX_STEP_TOKENS
    is_valid &= 0 <= fixed[MAX_BUDGET] <= NO_BUDGET_CAP
    for row in range(fixed[NUM_REQUESTS] if is_valid else 0):
        is_valid &= np.int64(request.slot_id[row]) < layout.max_requests
        is_valid &= np.int64(request.num_draft_tokens[row]) <= layout.max_draft_tokens
        is_valid &= 0.0 <= request.weight[row] < np.inf
    return is_valid
