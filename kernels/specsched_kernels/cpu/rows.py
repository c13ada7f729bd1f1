"""Row-wise kernels of the forward pass on the CPU.

torch spends more on dispatching the handful of operations that each of these stands for than on
their arithmetic: a step of one row runs them a hundred times. [first, last) are the rows to do, so
that the same code serves one thread and several.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import prange
from specsched_protocol.compiling import njit

from specsched_kernels.cpu.simd import LANES, silu_multiply

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _inverse_rms(row: Floats, eps: np.float32) -> np.float32:
    total = np.float32(0.0)
    for value in row:
        total += value * value
    inverse: np.float32 = np.float32(1.0) / np.sqrt(total / np.float32(row.size) + eps)
    return inverse


@njit(cache=True, nogil=True)
def rms_norm(
    x: Floats, weight: Floats, eps: np.float32, out: Floats, first: int, last: int
) -> None:
    """x, out: [n, d]; out may be x."""
    for row in range(first, last):
        scale = _inverse_rms(x[row], eps)
        for column in range(weight.size):
            out[row, column] = x[row, column] * scale * weight[column]


@njit(cache=True, nogil=True)
def add_rms_norm(
    hidden: Floats, delta: Floats, weight: Floats, eps: np.float32, out: Floats
) -> None:
    """hidden += delta; out = norm(hidden). All [n, d]."""
    for row in range(hidden.shape[0]):
        for column in range(weight.size):
            hidden[row, column] += delta[row, column]
    rms_norm(hidden, weight, eps, out, 0, hidden.shape[0])


def silu_and_mul(gate_up: Floats, out: Floats, workers: int) -> None:
    """out = silu(gate) * up. gate_up: [n, 2 d], d a multiple of LANES; out: [n, d]."""
    if workers == 1:
        _silu_and_mul(gate_up, out, 0, len(out))
    else:
        _silu_and_mul_parallel(gate_up, out, workers)


@njit(cache=True, nogil=True)
def _silu_and_mul(gate_up: Floats, out: Floats, first: int, last: int) -> None:
    size = out.shape[1]
    for row in range(first, last):
        gate = gate_up[row].ctypes.data
        silu_multiply(gate, gate + size * 4, out[row].ctypes.data, size // LANES)


@njit(cache=True, nogil=True, parallel=True)
def _silu_and_mul_parallel(gate_up: Floats, out: Floats, workers: int) -> None:
    num_rows = out.shape[0]
    for worker in prange(workers):
        # prange counts in unsigned numbers, which would compile everything once more.
        index = np.int64(worker)
        first, last = num_rows * index // workers, num_rows * (index + 1) // workers
        _silu_and_mul(gate_up, out, first, last)


@njit(cache=True, nogil=True)
def head_norm(
    heads: Floats, head: int, num_heads: int, weight: Floats, eps: np.float32, first: int, last: int
) -> None:
    """RMS norm of each of num_heads heads beginning with `head`, in place. heads: [n, H, D]."""
    for row in range(first, last):
        rms_norm(heads[row], weight, eps, heads[row], head, head + num_heads)


@njit(cache=True, nogil=True)
def rope(
    heads: Floats, num_heads: int, positions: Ints, cos_sin: Floats, first: int, last: int
) -> None:
    """Rotate the first num_heads of heads [n, H, D] in place. cos_sin: [max_positions, D]."""
    half = heads.shape[2] // 2
    for row in range(first, last):
        angles = cos_sin[positions[row]]
        for head in range(num_heads):
            vector = heads[row, head]
            for i in range(half):
                left, right = vector[i], vector[half + i]
                vector[i] = left * angles[i] - right * angles[half + i]
                vector[half + i] = right * angles[i] + left * angles[half + i]


@njit(cache=True, nogil=True)
def write_kv(
    key: Floats,
    key_head: int,
    value: Floats,
    value_head: int,
    slots: Ints,
    keys: Floats,
    values: Floats,
    first: int,
    last: int,
) -> None:
    """Hkv heads of key beginning with key_head, of value beginning with value_head, [n, *, D] each.

    keys: [B, Hkv, D, block_size]; values: [B, Hkv, block_size, D].
    """
    block_size = keys.shape[3]
    for row in range(first, last):
        if slots[row] < 0:
            continue
        block, offset = slots[row] // block_size, slots[row] % block_size
        for head in range(keys.shape[1]):
            for d in range(keys.shape[2]):
                keys[block, head, d, offset] = key[row, key_head + head, d]
                values[block, head, offset, d] = value[row, value_head + head, d]
