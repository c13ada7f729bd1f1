"""Lossless verification on the CPU, for requests that sample from the whole distribution.

Of a request one row after the other, and no row behind a rejection: most of a draft that fails
early costs nothing. A row is read twice, for its maximum and for its mass, and nothing of the size
of the vocabulary is written. The mass is summed by blocks: float32 within, float64 across, always
in the same order, so a row's token depends on nothing but row and key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import prange
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.row_sampling import (
    BLOCK,
    FAULTY,
    block_of,
    drawn_token,
    fill_masses,
    fill_weights,
    inverse,
    largest_of,
    most_likely,
    token_of,
)
from specsched_kernels.cpu.uniforms import keyed_uniform
from specsched_kernels.reference.uniforms import Purpose

__all__ = ["verify_rows"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NO_DRAFT: Final = -1
_SAMPLE, _ACCEPT, _RESIDUAL = int(Purpose.SAMPLE), int(Purpose.ACCEPT), int(Purpose.RESIDUAL)


def verify_rows(
    logits: Floats,
    logit_start_loc: Ints,
    verify_lens: Ints,
    output_positions: Ints,
    draft_token_ids: Ints,
    temperature: Floats,
    seeds: Ints,
    keeps_own_sample: Flags,
    distribution: Floats | None,
    token_ids: Ints,
    num_accepted: Ints,
    faulty: Flags,
    workers: int,
) -> None:
    """Fill token_ids [R, k+1], num_accepted [R] and faulty [R] as verify_drafts says.

    logits: [m, V], contiguous rows. distribution: [R, n, V] or None, n at
    least the largest verify_len. Shapes and meanings as in
    `specsched_kernels.verify_drafts`, with temperature alone shaping the target's distribution.
    workers: threads, 1 for the caller's alone.
    """
    arguments = (
        logits, logit_start_loc, verify_lens, output_positions, draft_token_ids, temperature, seeds,
        keeps_own_sample, distribution, token_ids, num_accepted, faulty,
    )  # fmt: skip
    token_ids[:] = 0
    num_accepted[:] = 0
    faulty[:] = False
    if workers == 1:
        _verify_every(*arguments, 0, 1)
    else:
        _verify_parallel(*arguments, workers)


@njit(cache=True, nogil=True, parallel=True)
def _verify_parallel(
    logits: Any, logit_start_loc: Any, verify_lens: Any, output_positions: Any,
    draft_token_ids: Any, temperature: Any, seeds: Any, keeps_own_sample: Any, distribution: Any,
    token_ids: Any, num_accepted: Any, faulty: Any, workers: Any,
) -> None:  # fmt: skip
    for worker in prange(workers):
        _verify_every(
            logits,
            logit_start_loc,
            verify_lens,
            output_positions,
            draft_token_ids,
            temperature,
            seeds,
            keeps_own_sample,
            distribution,
            token_ids,
            num_accepted,
            faulty,
            np.int64(worker),
            workers,
        )


@njit(cache=True, nogil=True)
def _verify_every(
    logits: Any, logit_start_loc: Any, verify_lens: Any, output_positions: Any,
    draft_token_ids: Any, temperature: Any, seeds: Any, keeps_own_sample: Any, distribution: Any,
    token_ids: Any, num_accepted: Any, faulty: Any, first: int, step: int,
) -> None:  # fmt: skip
    """Every step-th request, beginning with `first`."""
    weights = np.empty(BLOCK, dtype=np.float32)
    masses = np.empty((logits.shape[1] + BLOCK - 1) // BLOCK, dtype=np.float64)
    for request in range(first, verify_lens.size, step):
        start = logit_start_loc[request]
        if start == logit_start_loc[request + 1]:
            continue
        verify_len = verify_lens[request]
        for offset in range(verify_len + 1):
            row = logits[start + offset]
            draft = draft_token_ids[request, offset] if offset < verify_len else _NO_DRAFT
            position = output_positions[request] + offset
            if temperature[request] <= 0:
                token = most_likely(row)
            elif distribution is None or draft == _NO_DRAFT or keeps_own_sample[request]:
                token = _sampled(
                    row, temperature[request], seeds[request], position, weights, masses
                )
            else:
                token = _judged(
                    row, temperature[request], seeds[request], position, draft,
                    distribution[request, offset], weights, masses,
                )  # fmt: skip
            if token == FAULTY:
                faulty[request] = True
                break
            token_ids[request, offset] = token
            num_accepted[request] = offset
            if token != draft:
                break


@njit(cache=True, nogil=True)
def _sampled(
    row: Floats, temperature: np.float32, seed: int, position: int, weights: Floats, masses: Any
) -> int:
    """Inverse CDF of softmax(row / temperature) in order of token id."""
    largest, scale = largest_of(row), inverse(temperature)
    total = fill_masses(row, largest, scale, weights, masses)
    if not np.isfinite(largest) or np.isnan(total):
        return FAULTY
    uniform = keyed_uniform(seed, position, _SAMPLE)
    return int(drawn_token(row, largest, scale, masses, total, uniform, weights))


@njit(cache=True, nogil=True)
def _judged(
    row: Floats, temperature: np.float32, seed: int, position: int, draft: int, drafted: Floats,
    weights: Floats, masses: Any,
) -> int:  # fmt: skip
    """The draft if it is accepted, else a sample of what the target has beyond `drafted`."""
    largest, scale = largest_of(row), inverse(temperature)
    total = fill_masses(row, largest, scale, weights, masses)
    if not np.isfinite(largest) or np.isnan(total):
        return FAULTY
    target = np.exp(np.float64((row[draft] - largest) * scale)) / total
    if keyed_uniform(seed, position, _ACCEPT) * np.float64(drafted[draft]) < target:
        return draft
    uniform = keyed_uniform(seed, position, _RESIDUAL)
    share = np.float32(1.0 / total)
    residual = 0.0
    for block in range(masses.size):
        fill_weights(row, block, largest, scale, weights)
        masses[block] = _subtract(weights, drafted, block * BLOCK, share)
        residual += masses[block]
    if residual <= 0.0:
        # p equal to q everywhere is never rejected but for rounding; then p itself is it.
        total = fill_masses(row, largest, scale, weights, masses)
        return int(drawn_token(row, largest, scale, masses, total, uniform, weights))
    block, target = block_of(masses, residual * uniform)
    fill_weights(row, block, largest, scale, weights)
    _subtract(weights, drafted, block * BLOCK, share)
    return int(block * BLOCK + token_of(weights, target))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _subtract(weights: Floats, drafted: Floats, first: int, share: np.float32) -> float:
    """weights = max(weights * share - drafted, 0) in a block; returns their sum."""
    total = 0.0
    for token in range(min(BLOCK, drafted.size - first)):
        rest = max(weights[token] * share - drafted[first + token], np.float32(0.0))
        weights[token] = rest
        total += np.float64(rest)
    return total
