"""A row of logits in compiled code: its likeliest token, its mass by blocks, a token drawn from it.

Sums run in float32 within a block and in float64 across, always in the same order, so that what is
drawn depends on nothing but row, temperature and uniform.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.simd import LANES, exp_scaled, row_max
from specsched_kernels.temperature import SMALLEST_TEMPERATURE

__all__ = [
    "BLOCK",
    "FAULTY",
    "block_of",
    "drawn_token",
    "fill_masses",
    "fill_weights",
    "inverse",
    "largest_of",
    "most_likely",
    "token_of",
]

Floats = npt.NDArray[np.float32]

BLOCK: Final = 512
"""Tokens whose weights are held at once; a multiple of LANES."""
FAULTY: Final = -1
"""Instead of a token: the row has no largest logit, or a NaN."""
_VECTORS: Final = BLOCK // LANES
_LARGEST_SCALE: Final = np.float32(1 / SMALLEST_TEMPERATURE)


@njit(cache=True, nogil=True)
def most_likely(row: Floats) -> int:
    """The first of the largest logits; FAULTY where that is not finite or a logit is NaN."""
    largest = largest_of(row)
    if not np.isfinite(largest) or _num_nan(row) > 0:
        return FAULTY
    first = 0
    while True:
        last = min(first + BLOCK, row.size)
        num_equal = 0
        for token in range(first, last):
            num_equal += row[token] == largest
        if num_equal:
            break
        first = last
    while row[first] != largest:
        first += 1
    return first


@njit(cache=True, nogil=True)
def drawn_token(
    row: Floats, largest: np.float32, scale: np.float32, masses: Any, total: float, uniform: float,
    weights: Floats,
) -> int:  # fmt: skip
    """The token whose share of the mass covers `uniform`, after `fill_masses`."""
    block, target = block_of(masses, total * uniform)
    fill_weights(row, block, largest, scale, weights)
    return int(block * BLOCK + token_of(weights, target))


@njit(cache=True, nogil=True)
def block_of(masses: Any, target: float) -> tuple[int, float]:
    """The block in which the running sum passes `target`, and what is left of it there."""
    found, left = 0, target
    for block in range(masses.size):
        if masses[block] > 0.0:
            found = block
            if target < masses[block]:
                return block, target
            left = masses[block]  # rounding may carry it past the last one
        target -= masses[block]
    return found, left


@njit(cache=True, nogil=True)
def token_of(weights: Floats, target: float) -> int:
    """The token in which the running sum passes `target`; the last one of any weight, if none."""
    found = 0
    passed = 0.0
    for token in range(weights.size):
        if weights[token] > 0.0:
            found = token
            passed += np.float64(weights[token])
            if target < passed:
                break
    return found


@njit(cache=True, nogil=True)
def fill_masses(
    row: Floats, largest: np.float32, scale: np.float32, weights: Floats, masses: Any
) -> float:
    """masses[b] = sum of block b of exp((row - largest) * scale); returns the sum of all."""
    total = 0.0
    for block in range(masses.size):
        masses[block] = fill_weights(row, block, largest, scale, weights)
        total += masses[block]
    return total


@njit(cache=True, nogil=True)
def fill_weights(
    row: Floats, block: int, largest: np.float32, scale: np.float32, weights: Floats
) -> float:
    """weights = exp((row - largest) * scale) in one block, 0 beyond the row; returns their sum."""
    first = block * BLOCK
    if first + BLOCK <= row.size:
        address = row.ctypes.data + first * 4
        return np.float64(exp_scaled(address, _VECTORS, largest, scale, weights.ctypes.data))
    weights[:] = -np.inf
    weights[: row.size - first] = row[first:]
    address = weights.ctypes.data
    return np.float64(exp_scaled(address, _VECTORS, largest, scale, address))


@njit(cache=True, nogil=True)
def largest_of(row: Floats) -> np.float32:
    """The largest logit; -inf of none, NaN ignored."""
    num_vectors = row.size // LANES
    largest: np.float32 = row_max(row.ctypes.data, num_vectors)
    for token in range(num_vectors * LANES, row.size):
        largest = max(largest, row[token])
    return largest


@njit(cache=True, nogil=True)
def _num_nan(row: Floats) -> int:
    total = 0
    for value in row:
        total += value != value  # noqa: PLR0124 - np.isnan is not vectorised
    return total


@njit(cache=True, nogil=True)
def inverse(temperature: np.float32) -> np.float32:
    """1 / temperature, bounded."""
    return min(np.float32(1.0) / temperature, _LARGEST_SCALE)
