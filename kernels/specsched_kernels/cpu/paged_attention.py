"""Attention over a paged cache on the CPU: online softmax, vectorised over keys.

A work item is one kv head of a few rows of one request; the query heads that share the kv head go
through together, so keys and values are read once for all of them. The context is walked in
segments at fixed positions, and every sum runs in the order of the context: a row's bits depend on
nothing but its own request. Arrays are in storage order, see `cpu.layout`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import prange
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.simd import LANES, ROWS, exp_row, matmul_lanes, row_max

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Tables = npt.NDArray[np.int32]

SEGMENT: Final = 256
"""Context tokens whose scores are held at once; a multiple of every block size."""
_ITEM_ROWS: Final = 8
"""Query rows of one work item; each brings its group of heads."""


def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Tables,
    starts: Ints,
    lens: Ints,
    scale: np.float32,
    out: Floats,
    is_causal: bool,
    workers: int,
) -> None:
    """All items on `workers` threads; arguments as in attend_items, query [n, H, D]."""
    arguments = (query, query.shape[1], keys, values, tables, starts, lens, scale, out, is_causal)
    if workers == 1:
        attend_items(*arguments, 0, 1)
    else:
        _attend_parallel(*arguments, workers)


@njit(cache=True, nogil=True, parallel=True)
def _attend_parallel(
    query: Any, num_heads: Any, keys: Any, values: Any, tables: Any, starts: Any, lens: Any,
    scale: Any, out: Any, is_causal: Any, workers: Any,
) -> None:  # fmt: skip
    for worker in prange(workers):
        attend_items(
            query,
            num_heads,
            keys,
            values,
            tables,
            starts,
            lens,
            scale,
            out,
            is_causal,
            np.int64(worker),
            workers,
        )


@njit(cache=True, nogil=True)
def attend_items(
    query: Floats,
    num_heads: int,
    keys: Floats,
    values: Floats,
    tables: Tables,
    starts: Ints,
    lens: Ints,
    scale: np.float32,
    out: Floats,
    is_causal: bool,
    worker: int,
    num_workers: int,
) -> None:
    """Every num_workers-th item, beginning with item `worker`: neighbours cost about the same.

    query: [n, >= num_heads, D], the first num_heads are used. keys: [B, Hkv, D, block_size].
    values: [B, Hkv, block_size, D]. tables: [R, max_blocks]. starts: [R+1]. lens: [R].
    out: [n, num_heads, D]; rows of no request are left alone. Where it is not causal every row sees
    all of its request's context.
    """
    item = 0
    for request in range(len(lens)):
        start, stop = starts[request], starts[request + 1]
        for first in range(start, stop, _ITEM_ROWS):
            last = min(first + _ITEM_ROWS, stop)
            for kv_head in range(keys.shape[1]):
                if item % num_workers == worker:
                    _attend_item(
                        query[first:last], num_heads, keys, values, tables[request], kv_head,
                        lens[request] - (stop - first), lens[request], is_causal, scale,
                        out[first:last],
                    )  # fmt: skip
                item += 1


@njit(cache=True, nogil=True)
def _attend_item(
    query: Floats,
    num_heads: int,
    keys: Floats,
    values: Floats,
    table: Tables,
    kv_head: int,
    position: int,
    context_len: int,
    is_causal: bool,
    scale: np.float32,
    out: Floats,
) -> None:
    """One kv head of rows at position, position + 1, ... of one request."""
    group = num_heads // keys.shape[1]
    packed = _pack(query, kv_head * group, group, scale)
    total = np.zeros_like(packed)
    scores = np.zeros((packed.shape[0], SEGMENT), np.float32)
    maxima = np.full(packed.shape[0], -np.inf, np.float32)
    sums = np.zeros(packed.shape[0], np.float32)
    end = position + query.shape[0] if is_causal else context_len
    for segment in range(0, end, SEGMENT):
        length = min(SEGMENT, end - segment)
        blocks = table[segment // keys.shape[3] :]
        _score(packed, keys, blocks, kv_head, length, scores)
        for row in range(query.shape[0] * group):
            visible = length
            if is_causal:
                visible = min(position + row // group + 1 - segment, length)
            _exponentiate(scores[row], visible, length, row, maxima, sums, total)
        _add_values(scores, values, blocks, kv_head, length, total)
    for row in range(query.shape[0]):
        for member in range(group):
            source = row * group + member
            for d in range(total.shape[1]):
                out[row, kv_head * group + member, d] = total[source, d] / sums[source]


@njit(cache=True, nogil=True)
def _pack(query: Floats, first_head: int, group: int, scale: np.float32) -> Floats:
    """[rows * group padded to ROWS, D]: the group's queries, scaled."""
    num_rows, head_dim = query.shape[0], query.shape[2]
    padded = -(-num_rows * group // ROWS) * ROWS
    packed = np.zeros((padded, head_dim), np.float32)
    for row in range(num_rows):
        for member in range(group):
            for d in range(head_dim):
                packed[row * group + member, d] = query[row, first_head + member, d] * scale
    return packed


@njit(cache=True, nogil=True)
def _score(
    packed: Floats, keys: Floats, blocks: Tables, kv_head: int, length: int, scores: Floats
) -> None:
    """scores[:, 0:length] = packed @ keys of the segment; columns up to a whole vector are junk."""
    head_dim, block_size = keys.shape[2], keys.shape[3]
    for first in range(0, length, LANES):
        block, offset = blocks[first // block_size], first % block_size
        right = keys[block, kv_head].ctypes.data + offset * 4
        for row in range(0, packed.shape[0], ROWS):
            left, out = packed[row].ctypes.data, scores[row].ctypes.data + first * 4
            matmul_lanes(left, head_dim, right, block_size, head_dim, out, SEGMENT, False)


@njit(cache=True, nogil=True)
def _exponentiate(
    scores: Floats, visible: int, length: int, row: int, maxima: Floats, sums: Floats, total: Floats
) -> None:
    """Scores of one row become weights relative to its new maximum; hidden ones become 0."""
    num_vectors = -(-length // LANES)
    if visible <= 0:
        for column in range(num_vectors * LANES):
            scores[column] = 0.0
        return
    for column in range(visible, num_vectors * LANES):
        scores[column] = -np.inf
    address = scores.ctypes.data
    maximum = max(maxima[row], row_max(address, num_vectors))
    # The first segment has no weights to correct; exp(-inf - maximum) would be 0 times garbage.
    if sums[row] != 0.0:
        correction = np.exp(maxima[row] - maximum)
        sums[row] *= correction
        for d in range(total.shape[1]):
            total[row, d] *= correction
    sums[row] += exp_row(address, num_vectors, maximum)
    maxima[row] = maximum


@njit(cache=True, nogil=True)
def _add_values(
    scores: Floats, values: Floats, blocks: Tables, kv_head: int, length: int, total: Floats
) -> None:
    """total += weights @ values of the segment. Values past the context are never touched."""
    block_size, head_dim = values.shape[2], values.shape[3]
    for first in range(0, length, block_size):
        depth = min(block_size, length - first)
        block = values[blocks[first // block_size], kv_head].ctypes.data
        for column in range(0, head_dim, LANES):
            for row in range(0, total.shape[0], ROWS):
                left, out = scores[row].ctypes.data, total[row].ctypes.data
                matmul_lanes(
                    left + first * 4, SEGMENT, block + column * 4, head_dim, depth,
                    out + column * 4, head_dim, True,
                )  # fmt: skip
