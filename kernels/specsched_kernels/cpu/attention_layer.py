"""All that lies between the fused q, k, v projection and the output projection, in one call.

Every operation called from Python costs tens of microseconds once a layer's weights have swept the
caches, more than the arithmetic of a small step; here is one call in place of five.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import prange
from specsched_protocol.compiling import njit

from specsched_kernels.cpu import rows
from specsched_kernels.cpu.paged_attention import attend_items

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Tables = npt.NDArray[np.int32]


def attention_layer(
    heads: Floats,
    query_norm: Floats | None,
    key_norm: Floats | None,
    eps: np.float32,
    positions: Ints,
    cos_sin: Floats,
    slots: Ints,
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
    """Norms of q and k (if any), rope, the write of k and v to the cache, and attention.

    heads: [n, H + 2 Hkv, D], q, k and v heads of each row; changed in place. out: [n, H, D].
    keys, values in storage order, see `cpu.layout`; the rest as in the launchers paged_attention,
    rope and write_kv. workers: threads, 1 for the caller's alone.
    """
    arguments = (
        heads, query_norm, key_norm, eps, positions, cos_sin, slots, keys, values, tables, starts,
        lens, scale, out, is_causal,
    )  # fmt: skip
    if workers == 1:
        _serial(*arguments)
    else:
        _parallel(*arguments, workers)


@njit(cache=True, nogil=True)
def _prepare(
    heads: Any, query_norm: Any, key_norm: Any, eps: Any, positions: Any, cos_sin: Any, slots: Any,
    keys: Any, values: Any, num_heads: int, first: int, last: int,
) -> None:  # fmt: skip
    num_kv_heads = keys.shape[1]
    if query_norm is not None:
        rows.head_norm(heads, 0, num_heads, query_norm, eps, first, last)
    if key_norm is not None:
        rows.head_norm(heads, num_heads, num_kv_heads, key_norm, eps, first, last)
    rows.rope(heads, num_heads + num_kv_heads, positions, cos_sin, first, last)
    value_head = num_heads + num_kv_heads
    rows.write_kv(heads, num_heads, heads, value_head, slots, keys, values, first, last)


@njit(cache=True, nogil=True)
def _serial(
    heads: Any, query_norm: Any, key_norm: Any, eps: Any, positions: Any, cos_sin: Any, slots: Any,
    keys: Any, values: Any, tables: Any, starts: Any, lens: Any, scale: Any, out: Any,
    is_causal: Any,
) -> None:  # fmt: skip
    num_rows, num_heads = out.shape[0], out.shape[1]
    _prepare(
        heads, query_norm, key_norm, eps, positions, cos_sin, slots, keys, values, num_heads, 0,
        num_rows,
    )  # fmt: skip
    attend_items(heads, num_heads, keys, values, tables, starts, lens, scale, out, is_causal, 0, 1)


@njit(cache=True, nogil=True, parallel=True)
def _parallel(
    heads: Any, query_norm: Any, key_norm: Any, eps: Any, positions: Any, cos_sin: Any, slots: Any,
    keys: Any, values: Any, tables: Any, starts: Any, lens: Any, scale: Any, out: Any,
    is_causal: Any, workers: int,
) -> None:  # fmt: skip
    num_rows, num_heads = out.shape[0], out.shape[1]
    for worker in prange(workers):
        # prange counts in unsigned numbers, which would compile everything once more.
        index = np.int64(worker)
        first, last = num_rows * index // workers, num_rows * (index + 1) // workers
        _prepare(
            heads, query_norm, key_norm, eps, positions, cos_sin, slots, keys, values, num_heads,
            first, last,
        )  # fmt: skip
    for worker in prange(workers):
        attend_items(
            heads,
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
