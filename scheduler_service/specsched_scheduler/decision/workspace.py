"""Memory of the compiled decision: allocated once, reused for every step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MEMORY_SAMPLES",
    "NUM_BUCKETS",
    "RunningMean",
    "Workspace",
    "new_running_mean",
    "new_workspace",
]

MEMORY_SAMPLES = 4096.0
"""Most samples a running mean weighs its past with, so that it follows a changing load."""

NUM_BUCKETS = 1024
"""Most buckets that the budget search sorts gains into."""


class RunningMean(NamedTuple):
    """Mean confidence of each draft position over the steps seen so far.

    mean, num_samples: float64 [k]; where nothing valid was seen yet they are 0.5 and 0.
    Both are updated in place by every decision, so that a fresh one gives the stateless answer.
    """

    mean: npt.NDArray[np.float64]
    num_samples: npt.NDArray[np.float64]


class Workspace(NamedTuple):
    """Scratch memory for steps of at most R requests with k draft positions, n = R * k.

    gain, ordered: float64 [n + k]; key: uint16 [n + k]; survival: float64 [R, k]; pending: int32
    [R]; position_sum, position_count: float64 [k]. Per bucket of gains,
    [NUM_BUCKETS]: bucket_count int64, bucket_sum float64; bucket_rank int64 and bucket_base
    float64, how many gains and what sum lie before it; bucket_slot int64, where its gains go in
    `ordered`; bucket_state int8.
    """

    gain: npt.NDArray[np.float64]
    ordered: npt.NDArray[np.float64]
    key: npt.NDArray[np.uint16]
    survival: npt.NDArray[np.float64]
    pending: npt.NDArray[np.int32]
    position_sum: npt.NDArray[np.float64]
    position_count: npt.NDArray[np.float64]
    bucket_count: npt.NDArray[np.int64]
    bucket_sum: npt.NDArray[np.float64]
    bucket_rank: npt.NDArray[np.int64]
    bucket_base: npt.NDArray[np.float64]
    bucket_slot: npt.NDArray[np.int64]
    bucket_state: npt.NDArray[np.int8]


def new_running_mean(max_draft_tokens: int) -> RunningMean:
    """The state before any confidence was seen."""
    return RunningMean(mean=np.full(max_draft_tokens, 0.5), num_samples=np.zeros(max_draft_tokens))


def new_workspace(max_requests: int, max_draft_tokens: int) -> Workspace:
    """Scratch memory for `decide_into` on up to max_requests x max_draft_tokens drafts."""
    size = max_requests * max_draft_tokens + max_draft_tokens + 1
    return Workspace(
        gain=np.zeros(size),
        ordered=np.zeros(size),
        key=np.zeros(size, dtype=np.uint16),
        survival=np.zeros((max_requests, max_draft_tokens)),
        pending=np.zeros(max_requests + 1, dtype=np.int32),
        position_sum=np.zeros(max_draft_tokens),
        position_count=np.zeros(max_draft_tokens),
        bucket_count=np.zeros(NUM_BUCKETS, dtype=np.int64),
        bucket_sum=np.zeros(NUM_BUCKETS),
        bucket_rank=np.zeros(NUM_BUCKETS, dtype=np.int64),
        bucket_base=np.zeros(NUM_BUCKETS),
        bucket_slot=np.zeros(NUM_BUCKETS, dtype=np.int64),
        bucket_state=np.zeros(NUM_BUCKETS, dtype=np.int8),
    )
