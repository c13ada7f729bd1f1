"""Lossless verification on the CPU, for requests that sample from the whole distribution.

One request after the other, one row after the other, and no row behind a rejection: most of a
draft that fails early costs nothing. A row is read twice, for its maximum and for its mass, and
nothing of the size of the vocabulary is written. The mass is summed by blocks: float32 within,
float64 across, always in the same order, so a row's token depends on nothing but row and key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.simd import LANES, exp_scaled, row_max
from specsched_kernels.cpu.uniforms import keyed_uniform
from specsched_kernels.reference.uniforms import Purpose

__all__ = ["verify_rows"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BLOCK: Final = 512
"""Tokens whose weights are held at once; a multiple of LANES."""
_VECTORS: Final = _BLOCK // LANES
_LARGEST_SCALE: Final = np.float32(1e30)
"""Of 1 / temperature: 0 times it is still 0."""
_NO_DRAFT: Final = -1
_FAULTY: Final = -1
_SAMPLE, _ACCEPT, _RESIDUAL = int(Purpose.SAMPLE), int(Purpose.ACCEPT), int(Purpose.RESIDUAL)


@njit(cache=True, nogil=True)
def verify_rows(
    logits: Floats,
    logit_start_loc: Ints,
    verify_lens: Ints,
    output_positions: Ints,
    draft_token_ids: Ints,
    temperature: Floats,
    seeds: Ints,
    distribution: Floats | None,
    token_ids: Ints,
    num_accepted: Ints,
    faulty: Flags,
) -> None:
    """Fill token_ids [R, k+1], num_accepted [R] and faulty [R] as verify_drafts says.

    logits: [m, V], contiguous rows. distribution: [R, k, V] or None. Shapes and meanings as in
    `specsched_kernels.verify_drafts`, with temperature alone shaping the target's distribution.
    """
    weights = np.empty(_BLOCK, dtype=np.float32)
    masses = np.empty((logits.shape[1] + _BLOCK - 1) // _BLOCK, dtype=np.float64)
    token_ids[:] = 0
    num_accepted[:] = 0
    faulty[:] = False
    for request in range(verify_lens.size):
        start = logit_start_loc[request]
        if start == logit_start_loc[request + 1]:
            continue
        verify_len = verify_lens[request]
        for offset in range(verify_len + 1):
            row = logits[start + offset]
            draft = draft_token_ids[request, offset] if offset < verify_len else _NO_DRAFT
            position = output_positions[request] + offset
            if temperature[request] <= 0:
                token = _most_likely(row)
            elif distribution is None or draft == _NO_DRAFT:
                token = _sampled(
                    row, temperature[request], seeds[request], position, weights, masses
                )
            else:
                token = _judged(
                    row, temperature[request], seeds[request], position, draft,
                    distribution[request, offset], weights, masses,
                )  # fmt: skip
            if token == _FAULTY:
                faulty[request] = True
                break
            token_ids[request, offset] = token
            num_accepted[request] = offset
            if token != draft:
                break


@njit(cache=True, nogil=True)
def _most_likely(row: Floats) -> int:
    """The first of the largest logits; _FAULTY where that is not finite or a logit is NaN."""
    largest = _largest(row)
    if not np.isfinite(largest) or _num_nan(row) > 0:
        return _FAULTY
    first = 0
    while True:
        last = min(first + _BLOCK, row.size)
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
def _sampled(
    row: Floats, temperature: np.float32, seed: int, position: int, weights: Floats, masses: Any
) -> int:
    """Inverse CDF of softmax(row / temperature) in order of token id."""
    largest, scale = _largest(row), _scale(temperature)
    total = _fill_masses(row, largest, scale, weights, masses)
    if not np.isfinite(largest) or np.isnan(total):
        return _FAULTY
    uniform = keyed_uniform(seed, position, _SAMPLE)
    return int(_drawn(row, largest, scale, masses, total, uniform, weights))


@njit(cache=True, nogil=True)
def _judged(
    row: Floats, temperature: np.float32, seed: int, position: int, draft: int, drafted: Floats,
    weights: Floats, masses: Any,
) -> int:  # fmt: skip
    """The draft if it is accepted, else a sample of what the target has beyond `drafted`."""
    largest, scale = _largest(row), _scale(temperature)
    total = _fill_masses(row, largest, scale, weights, masses)
    if not np.isfinite(largest) or np.isnan(total):
        return _FAULTY
    target = np.exp(np.float64((row[draft] - largest) * scale)) / total
    if keyed_uniform(seed, position, _ACCEPT) * np.float64(drafted[draft]) < target:
        return draft
    uniform = keyed_uniform(seed, position, _RESIDUAL)
    share = np.float32(1.0 / total)
    residual = 0.0
    for block in range(masses.size):
        _fill_weights(row, block, largest, scale, weights)
        masses[block] = _subtract(weights, drafted, block * _BLOCK, share)
        residual += masses[block]
    if residual <= 0.0:
        # p equal to q everywhere is never rejected but for rounding; then p itself is it.
        total = _fill_masses(row, largest, scale, weights, masses)
        return int(_drawn(row, largest, scale, masses, total, uniform, weights))
    block, target = _block_of(masses, residual * uniform)
    _fill_weights(row, block, largest, scale, weights)
    _subtract(weights, drafted, block * _BLOCK, share)
    return int(block * _BLOCK + _token_of(weights, target))


@njit(cache=True, nogil=True)
def _drawn(
    row: Floats, largest: np.float32, scale: np.float32, masses: Any, total: float, uniform: float,
    weights: Floats,
) -> int:  # fmt: skip
    block, target = _block_of(masses, total * uniform)
    _fill_weights(row, block, largest, scale, weights)
    return int(block * _BLOCK + _token_of(weights, target))


@njit(cache=True, nogil=True)
def _block_of(masses: Any, target: float) -> tuple[int, float]:
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
def _token_of(weights: Floats, target: float) -> int:
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
def _fill_masses(
    row: Floats, largest: np.float32, scale: np.float32, weights: Floats, masses: Any
) -> float:
    """masses[b] = sum of block b of exp((row - largest) * scale); returns the sum of all."""
    total = 0.0
    for block in range(masses.size):
        masses[block] = _fill_weights(row, block, largest, scale, weights)
        total += masses[block]
    return total


@njit(cache=True, nogil=True)
def _fill_weights(
    row: Floats, block: int, largest: np.float32, scale: np.float32, weights: Floats
) -> float:
    """weights = exp((row - largest) * scale) in one block, 0 beyond the row; returns their sum."""
    first = block * _BLOCK
    if first + _BLOCK <= row.size:
        address = row.ctypes.data + first * 4
        return np.float64(exp_scaled(address, _VECTORS, largest, scale, weights.ctypes.data))
    weights[:] = -np.inf
    weights[: row.size - first] = row[first:]
    address = weights.ctypes.data
    return np.float64(exp_scaled(address, _VECTORS, largest, scale, address))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _subtract(weights: Floats, drafted: Floats, first: int, share: np.float32) -> float:
    """weights = max(weights * share - drafted, 0) in a block; returns their sum."""
    total = 0.0
    for token in range(min(_BLOCK, drafted.size - first)):
        rest = max(weights[token] * share - drafted[first + token], np.float32(0.0))
        weights[token] = rest
        total += np.float64(rest)
    return total


@njit(cache=True, nogil=True)
def _largest(row: Floats) -> np.float32:
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
def _scale(temperature: np.float32) -> np.float32:
    return min(np.float32(1.0) / temperature, _LARGEST_SCALE)
