"""Vector primitives for numba kernels.

numba vectorises a loop only where LLVM finds out how; attention needs its sums in registers,
several rows at a time, and exp without a call per element, which it does not find out. Addresses
are integers (`array.ctypes.data` plus bytes), strides and lengths count float32 elements, and
every sum runs in an order that does not depend on the data around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import extending
from numba.core import cgutils as _cgutils
from numba.core import types

from specsched_kernels.cpu import vector_ir as vec
from specsched_kernels.cpu.vector_ir import INT64, LANES, VECTOR, Builder, Value

__all__ = ["LANES", "ROWS", "exp_row", "exp_scaled", "matmul_lanes", "row_max", "silu_multiply"]

cgutils: Any = _cgutils
"""numba.core.cgutils, which is not typed."""

ROWS: Final = 4
"""Rows a product handles at once; callers pad to a multiple."""


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba.extending.intrinsic, which is not typed."""
    return extending.intrinsic(function)


@intrinsic
def matmul_lanes(
    typingctx: Any, left: Any, left_stride: Any, right: Any, right_stride: Any, depth: Any,
    out: Any, out_stride: Any, add: Any,
) -> Any:  # fmt: skip
    """out[0:ROWS, 0:LANES] (+)= left[0:ROWS, 0:depth] @ right[0:depth, 0:LANES].

    One running sum per element, in the order of depth. `add` keeps what is in out.
    """
    signature = types.void(*(types.int64,) * 7, types.boolean)

    def generate(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        left, left_stride, right, right_stride, depth, out, out_stride, add = arguments
        sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(ROWS)]
        outputs = [vec.times(builder, out_stride, row) for row in range(ROWS)]
        with builder.if_else(builder.trunc(add, ir.IntType(1))) as (kept, fresh):
            with kept:
                for total, offset in zip(sums, outputs, strict=True):
                    builder.store(vec.load(builder, out, offset), total)
            with fresh:
                for total in sums:
                    builder.store(vec.constant(0.0), total)
        with cgutils.for_range(builder, depth, intp=INT64) as loop:
            vector = vec.load(builder, right, builder.mul(loop.index, right_stride))
            for row, total in enumerate(sums):
                element = builder.add(vec.times(builder, left_stride, row), loop.index)
                scalar = vec.load_splat(builder, left, element)
                product = vec.multiply_add(builder, scalar, vector, builder.load(total))
                builder.store(product, total)
        for total, offset in zip(sums, outputs, strict=True):
            vec.store(builder, builder.load(total), out, offset)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def row_max(typingctx: Any, row: Any, num_vectors: Any) -> Any:
    """Largest of num_vectors * LANES floats; -inf for none, NaN ignored."""
    signature = types.float32(types.int64, types.int64)

    def generate(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        row, num_vectors = arguments
        best = cgutils.alloca_once_value(builder, vec.constant(float("-inf")))
        with cgutils.for_range(builder, num_vectors, intp=INT64) as loop:
            vector = vec.load(builder, row, vec.times(builder, loop.index, LANES))
            builder.store(vec.larger(builder, vector, builder.load(best)), best)
        return vec.reduce_lanes(builder, builder.load(best), vec.larger)

    return signature, generate


@intrinsic
def exp_row(typingctx: Any, row: Any, num_vectors: Any, shift: Any) -> Any:
    """row = exp(row - shift) in place over num_vectors * LANES floats; returns their sum.

    shift must be at least the row's maximum. -inf gives exactly 0.
    """
    signature = types.float32(types.int64, types.int64, types.float32)

    def generate(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        row, num_vectors, shift = arguments
        total = cgutils.alloca_once_value(builder, vec.constant(0.0))
        shifts = vec.splat(builder, shift)
        with cgutils.for_range(builder, num_vectors, intp=INT64) as loop:
            offset = vec.times(builder, loop.index, LANES)
            shifted = builder.fsub(vec.load(builder, row, offset), shifts)
            value = vec.exp_of_negative(builder, shifted)
            vec.store(builder, value, row, offset)
            builder.store(builder.fadd(builder.load(total), value), total)
        return vec.reduce_lanes(builder, builder.load(total), type(builder).fadd)

    return signature, generate


@intrinsic
def exp_scaled(typingctx: Any, row: Any, num_vectors: Any, shift: Any, scale: Any, out: Any) -> Any:
    """out = exp((row - shift) * scale) over num_vectors * LANES floats; returns their sum.

    shift must be at least the row's maximum, scale finite and not negative. -inf gives exactly 0,
    NaN gives NaN.
    """
    floats = (types.float32, types.float32)
    signature = types.float32(types.int64, types.int64, *floats, types.int64)

    def generate(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        row, num_vectors, shift, scale, out = arguments
        total = cgutils.alloca_once_value(builder, vec.constant(0.0))
        shifts, scales = vec.splat(builder, shift), vec.splat(builder, scale)
        with cgutils.for_range(builder, num_vectors, intp=INT64) as loop:
            offset = vec.times(builder, loop.index, LANES)
            shifted = builder.fsub(vec.load(builder, row, offset), shifts)
            value = vec.exp_of_negative(builder, builder.fmul(shifted, scales))
            vec.store(builder, value, out, offset)
            builder.store(builder.fadd(builder.load(total), value), total)
        return vec.reduce_lanes(builder, builder.load(total), type(builder).fadd)

    return signature, generate


@intrinsic
def silu_multiply(typingctx: Any, gate: Any, up: Any, out: Any, num_vectors: Any) -> Any:
    """out = gate / (1 + exp(-gate)) * up over num_vectors * LANES floats."""
    signature = types.void(*(types.int64,) * 4)

    def generate(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        gate, up, out, num_vectors = arguments
        zero, one = vec.constant(0.0), vec.constant(1.0)
        with cgutils.for_range(builder, num_vectors, intp=INT64) as loop:
            offset = vec.times(builder, loop.index, LANES)
            x = vec.load(builder, gate, offset)
            negative = builder.fcmp_ordered("<", x, zero)
            minus_magnitude = builder.select(negative, x, builder.fsub(zero, x))
            power = vec.exp_of_negative(builder, minus_magnitude)
            numerator = builder.select(negative, power, one)
            sigmoid = builder.fdiv(numerator, builder.fadd(power, one))
            product = builder.fmul(builder.fmul(x, sigmoid), vec.load(builder, up, offset))
            vec.store(builder, product, out, offset)
        return context.get_dummy_value()

    return signature, generate
