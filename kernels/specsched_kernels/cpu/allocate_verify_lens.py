"""The allocation rule on the CPU in one compiled call; bit for bit the torch reference.

The reference is some forty operations, half a millisecond of dispatching in every step of a small
model; the arithmetic of a hundred drafts is microseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

__all__ = ["allocate"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_PAD_SLOT = -1
_LARGEST = np.finfo(np.float32).max


@njit(cache=True, nogil=True)
def allocate(
    confidence: Floats,
    num_draft_tokens: Ints,
    weights: Floats,
    budget: int,
    prior: Floats,
    start_positions: Longs,
    max_verify_len: Ints,
    num_base_rows: Ints,
    samples: Flags,
    verify_lens: Ints,
    query_start_loc: Ints,
    row_to_request: Ints,
    row_positions: Longs,
    logit_start_loc: Ints,
    logit_rows: Longs,
) -> None:
    """Fill the outputs as `specsched_kernels.allocate_verify_lens` says.

    confidence: [R, k], gathered. max_verify_len: [R], or [1] for all. The others [R] each. Raises
    ValueError where the outputs are too small for the base rows.
    """
    num_requests, num_positions = confidence.shape
    base = np.maximum(num_base_rows, 0)
    row_room, logit_room = row_to_request.size, logit_rows.size
    present = np.zeros(num_requests, dtype=np.int64)
    for request in range(num_requests):
        row_room -= base[request]
        if samples[request] and base[request] > 0:
            logit_room -= 1
            cap = max_verify_len[request if max_verify_len.size > 1 else 0]
            longest = min(num_draft_tokens[request], num_positions, max(cap, 0))
            present[request] = max(longest, 0)
    if row_room < 0 or logit_room < 0:
        raise ValueError("the base rows or their logits outgrow the padded rows")
    most = min(budget, row_room, logit_room, present.sum())
    _rank(confidence, weights, prior, present, max(most, 0), verify_lens)
    _lay_out(
        base, samples, start_positions, verify_lens, query_start_loc, row_to_request,
        row_positions, logit_start_loc, logit_rows,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _rank(
    confidence: Floats, weights: Floats, prior: Floats, present: Any, budget: int, lens: Ints
) -> None:
    """lens[r] = drafts of r among the `budget` of the largest weight * survival."""
    num_requests, num_positions = confidence.shape
    lens[:] = 0
    if budget == present.sum():
        for request in range(num_requests):
            lens[request] = present[request]
        return
    # Position after position, so that a stable sort breaks ties by position, then request.
    scores = np.full(num_positions * num_requests, np.float32(1.0))
    for request in range(num_requests):
        weight = weights[request] if weights[request] > 0 else np.float32(0.0)
        weight = min(weight, _LARGEST)
        survival = np.float32(1.0)
        for position in range(present[request]):
            survival = survival * _probability(confidence[request, position], prior[position])
            # Sorted upwards: the best score is the most negative, an absent one is positive.
            scores[position * num_requests + request] = -(weight * survival)
    order = np.argsort(scores, kind="mergesort")
    for rank in range(budget):
        lens[order[rank] % num_requests] += 1


@njit(cache=True, nogil=True)
def _probability(value: np.float32, prior: np.float32) -> np.float32:
    if 0 <= value <= 1:
        return abs(value)
    if 0 <= prior <= 1:
        return abs(prior)
    return np.float32(0.0)


@njit(cache=True, nogil=True)
def _lay_out(
    base: Any, samples: Flags, start_positions: Longs, verify_lens: Ints, query_start_loc: Ints,
    row_to_request: Ints, row_positions: Longs, logit_start_loc: Ints, logit_rows: Longs,
) -> None:  # fmt: skip
    row_to_request[:] = _PAD_SLOT
    row_positions[:] = 0
    logit_rows[:] = 0
    query_start_loc[0] = 0
    logit_start_loc[0] = 0
    row, logit = 0, 0
    for request in range(verify_lens.size):
        is_sampling = samples[request] and base[request] > 0
        first_logit = base[request] - 1 if is_sampling else row_positions.size
        for offset in range(base[request] + verify_lens[request]):
            row_to_request[row] = request
            row_positions[row] = start_positions[request] + offset
            if offset >= first_logit:
                logit_rows[logit] = row
                logit += 1
            row += 1
        query_start_loc[request + 1] = row
        logit_start_loc[request + 1] = logit
