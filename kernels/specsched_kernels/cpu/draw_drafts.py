"""Draft tokens drawn on the CPU, with the distribution that they were drawn from.

A row of logits is summed where it stays in the cache, read for its maximum, its mass and its
probabilities, and only those are written; torch goes over rows of a vocabulary a dozen times for
the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import prange
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


def draw_drafts(
    base: Floats,
    bias: Floats,
    temperature: Floats,
    uniforms: Doubles,
    position: int,
    token_ids: Ints,
    distribution: Floats | None,
    workers: int,
) -> None:
    """Fill token_ids[:, position], and distribution[:, position] of the requests that draw.

    Of logits base[:, position] + bias; base: float32 [R, n, V], bias: float32 [R, V]. temperature:
    [R]; 0 takes the likeliest token and leaves the request's distribution as it is. uniforms:
    float64 [R, n]. distribution: float32 [R, n, V], needed where anybody draws. A row that is not
    finite drafts token 0 for certain, which verification judges as it judges any draft. workers:
    threads, 1 for the caller's alone.
    """
    arguments = (base, bias, temperature, uniforms, position, token_ids, distribution)
    if workers == 1:
        _draw_every(*arguments, 0, 1)
    else:
        _draw_parallel(*arguments, workers)


@njit(cache=True, nogil=True, parallel=True)
def _draw_parallel(
    base: Any, bias: Any, temperature: Any, uniforms: Any, position: Any, token_ids: Any,
    distribution: Any, workers: Any,
) -> None:  # fmt: skip
    for worker in prange(workers):
        _draw_every(
            base,
            bias,
            temperature,
            uniforms,
            position,
            token_ids,
            distribution,
            np.int64(worker),
            workers,
        )


@njit(cache=True, nogil=True)
def _draw_every(
    base: Any, bias: Any, temperature: Any, uniforms: Any, position: int, token_ids: Any,
    distribution: Any, first: int, step: int,
) -> None:  # fmt: skip
    """Of every step-th request, beginning with `first`."""
    row = np.empty(bias.shape[1], dtype=np.float32)
    weights = np.empty(BLOCK, dtype=np.float32)
    masses = np.empty((row.size + BLOCK - 1) // BLOCK, dtype=np.float64)
    for request in range(first, len(bias), step):
        of_base, of_bias = base[request, position], bias[request]
        for token in range(row.size):
            row[token] = of_base[token] + of_bias[token]
        if temperature[request] <= 0 or distribution is None:
            token_ids[request, position] = max(most_likely(row), 0)
            continue
        token_ids[request, position] = _drawn(
            row, temperature[request], uniforms[request, position], weights, masses,
            distribution[request, position],
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _drawn(
    row: Floats, temperature: np.float32, uniform: float, weights: Floats, masses: Any, out: Floats
) -> int:
    """The token that a row of logits draws; out: the distribution."""
    largest, scale = largest_of(row), inverse(temperature)
    total = fill_masses(row, largest, scale, weights, masses)
    if not np.isfinite(largest) or not np.isfinite(total):
        out[:] = np.float32(0.0)
        out[0] = np.float32(1.0)
        return 0
    share = np.float32(1.0 / total)
    token = int(drawn_token(row, largest, scale, masses, total, uniform, weights))
    for block in range(masses.size):
        fill_weights(row, block, largest, scale, weights)
        first = block * BLOCK
        for index in range(min(BLOCK, row.size - first)):
            out[first + index] = weights[index] * share
    return token
