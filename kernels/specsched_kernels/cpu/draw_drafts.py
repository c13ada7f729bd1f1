"""Draft tokens drawn on the CPU, with the distribution that they were drawn from.

A row is read for its maximum, its mass and its probabilities, and written once; torch goes over
rows of a vocabulary a dozen times for the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.row_sampling import (
    BLOCK,
    drawn_token,
    fill_masses,
    fill_weights,
    inverse,
    largest_of,
    most_likely,
)

__all__ = ["draw_drafts"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def draw_drafts(
    logits: Floats,
    temperature: Floats,
    uniforms: Doubles,
    position: int,
    token_ids: Ints,
    distribution: Floats | None,
) -> None:
    """Fill token_ids[:, position], and distribution[:, position] of the requests that draw.

    logits: float32 [R, V], rows contiguous. temperature: [R]; 0 takes the likeliest token and
    leaves the request's distribution as it is. uniforms: float64 [R, k]. distribution: float32
    [R, k, V], needed where anybody draws. A row that is not finite drafts token 0 for certain,
    which verification judges as it judges any draft.
    """
    weights = np.empty(BLOCK, dtype=np.float32)
    masses = np.empty((logits.shape[1] + BLOCK - 1) // BLOCK, dtype=np.float64)
    for request in range(logits.shape[0]):
        row = logits[request]
        if temperature[request] <= 0 or distribution is None:
            token_ids[request, position] = max(most_likely(row), 0)
            continue
        out = distribution[request, position]
        largest, scale = largest_of(row), inverse(temperature[request])
        total = fill_masses(row, largest, scale, weights, masses)
        if not np.isfinite(largest) or not np.isfinite(total):
            token_ids[request, position] = 0
            out[:] = np.float32(0.0)
            out[0] = np.float32(1.0)
            continue
        uniform = uniforms[request, position]
        token_ids[request, position] = drawn_token(
            row, largest, scale, masses, total, uniform, weights
        )
        share = np.float32(1.0 / total)
        for block in range(masses.size):
            fill_weights(row, block, largest, scale, weights)
            first = block * BLOCK
            for token in range(min(BLOCK, row.size - first)):
                out[first + token] = weights[token] * share
