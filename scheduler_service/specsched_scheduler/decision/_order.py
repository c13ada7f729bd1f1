"""Compiled: gains in rank order, and the rules that read them one by one.

Sums depend on the gains' values alone, so ties in rank need no order here: position and row only
matter to whom the budget goes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from specsched_protocol.compiling import njit

from specsched_scheduler.decision._price import Objective, price_at
from specsched_scheduler.decision.workspace import NUM_BUCKETS, Workspace

__all__ = [
    "CLOSED",
    "DEAD",
    "OPEN",
    "Choice",
    "bucket_edge",
    "bucket_gains",
    "bucket_shape",
    "first_maximum",
    "order_all",
    "order_buckets",
    "sort_descending",
    "sum_first",
]

MANY_GAINS = 4096
"""Steps of more gains use all buckets, smaller ones a quarter: clearing them costs time too."""
DEAD, CLOSED, OPEN = 0, 1, 2
"""Bucket states: cannot hold the best budget; only its last budget can; any of its budgets can."""


class Choice(NamedTuple):
    """A budget, the sum of its gains, and the cut: it admits all gains above it, then ties."""

    budget: int
    gain_sum: float
    cut: float


@njit(cache=True, nogil=True)
def sort_descending(values: Any, begin: int, end: int) -> None:
    """Sort values[begin:end] in place: insertion sort, Shell's gaps first where it is long."""
    for gap in (8861, 3938, 1750, 701, 301, 132, 57, 23, 10, 4, 1):
        if gap > 1 and gap * 2 > end - begin:
            continue
        for index in range(begin + gap, end):
            value = values[index]
            slot = index
            while slot >= begin + gap and values[slot - gap] < value:
                values[slot] = values[slot - gap]
                slot -= gap
            values[slot] = value


@njit(cache=True, nogil=True)
def bucket_shape(num_gains: int) -> Any:
    """(number of buckets, bits of a float64 pattern to drop) for a search.

    The buckets reach 16 factors of two below the largest weight, with 64 (16 where they are few)
    to each; the last one takes all that is smaller.
    """
    return (NUM_BUCKETS, 46) if num_gains > MANY_GAINS else (NUM_BUCKETS // 4, 48)


@njit(cache=True, nogil=True)
def bucket_gains(
    workspace: Workspace, num_gains: int, max_weight: float, num_buckets: int, shift: int
) -> Any:
    """Count and sum gains by the leading bits of their pattern, largest first; the smallest gain.

    Positive floats order like their bits, so that each bucket holds one range of values.
    """
    workspace.gain[num_gains] = max_weight
    bits = workspace.gain.view(np.int64)
    top = bits[num_gains]
    smallest = top
    for index in range(num_gains):
        smallest = min(smallest, bits[index])
        workspace.key[index] = np.uint16(min((top - bits[index]) >> shift, num_buckets - 1))
    workspace.bucket_count[:num_buckets] = 0
    workspace.bucket_sum[:num_buckets] = 0.0
    for index in range(num_gains):
        bucket = workspace.key[index]
        workspace.bucket_count[bucket] += 1
        workspace.bucket_sum[bucket] += workspace.gain[index]
    bits[num_gains] = smallest
    return workspace.gain[num_gains]


@njit(cache=True, nogil=True)
def bucket_edge(workspace: Workspace, num_gains: int, max_weight: float, bucket: int) -> Any:
    """No gain of the search's bucket `bucket` exceeds this, and all of earlier buckets do."""
    num_buckets, shift = bucket_shape(num_gains)
    if bucket >= num_buckets:
        return 0.0
    workspace.gain[num_gains] = max_weight
    bits = workspace.gain.view(np.int64)
    bits[num_gains] -= np.int64(bucket) << shift
    return workspace.gain[num_gains]


@njit(cache=True, nogil=True)
def order_buckets(workspace: Workspace, num_gains: int, num_buckets: int) -> None:
    """Lay the gains of all OPEN buckets out in rank order in workspace.ordered.

    bucket_slot[b] becomes the END of bucket b there.
    """
    slot = 0
    for bucket in range(num_buckets):
        workspace.bucket_slot[bucket] = slot
        slot += workspace.bucket_count[bucket] if workspace.bucket_state[bucket] == OPEN else 0
    for index in range(num_gains):
        bucket = workspace.key[index]
        if workspace.bucket_state[bucket] == OPEN:
            slot = workspace.bucket_slot[bucket]
            workspace.ordered[slot] = workspace.gain[index]
            workspace.bucket_slot[bucket] = slot + 1
    for bucket in range(num_buckets):
        if workspace.bucket_state[bucket] == OPEN:
            end = workspace.bucket_slot[bucket]
            sort_descending(workspace.ordered, end - workspace.bucket_count[bucket], end)


@njit(cache=True, nogil=True)
def _span_shift(workspace: Workspace, num_gains: int, max_weight: float) -> Any:
    """Bits to drop so that all gains spread over NUM_BUCKETS, however small they are."""
    workspace.gain[num_gains] = max_weight
    bits = workspace.gain.view(np.int64)
    span = bits[num_gains] - bits[: num_gains + 1].min()
    shift = 0
    while span >> shift >= NUM_BUCKETS:
        shift += 1
    return shift


@njit(cache=True, nogil=True)
def order_all(workspace: Workspace, num_gains: int, max_weight: float) -> None:
    """All gains in rank order in workspace.ordered[:num_gains]."""
    shift = _span_shift(workspace, num_gains, max_weight)
    bucket_gains(workspace, num_gains, max_weight, NUM_BUCKETS, shift)
    workspace.bucket_state[:] = OPEN
    order_buckets(workspace, num_gains, NUM_BUCKETS)


@njit(cache=True, nogil=True)
def first_maximum(
    objective: Objective, ordered: Any, max_budget: int, stops_at_descent: bool
) -> Any:
    """argmax over B of (W + sum of the B largest) / price(B), first maximum; the definition itself.

    stops_at_descent: look no further than the first B whose ratio is below that of B - 1.
    """
    gain_sum, best_sum, budget = 0.0, 0.0, 0
    last = objective.total_weight / price_at(objective, 0)
    best = last
    for index in range(max_budget):
        gain_sum += ordered[index]
        ratio = (objective.total_weight + gain_sum) / price_at(objective, index + 1)
        if ratio > best:
            best, best_sum, budget = ratio, gain_sum, index + 1
        if stops_at_descent and ratio < last:
            break
        last = ratio
    return Choice(budget, best_sum, ordered[budget - 1] if budget > 0 else np.inf)


@njit(cache=True, nogil=True)
def sum_first(ordered: Any, budget: int) -> Any:
    """The choice of the `budget` largest gains, summed in rank order."""
    gain_sum = 0.0
    for index in range(budget):
        gain_sum += ordered[index]
    return Choice(budget, gain_sum, ordered[budget - 1] if budget > 0 else np.inf)
