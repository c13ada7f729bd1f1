"""LLVM instructions on vectors of float32, the vocabulary that `simd` is written in.

Addresses are 64-bit integers; offsets count float32 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir

LANES: Final = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8
"""float32 per vector: one AVX-512 register, one AVX2 register, or two NEON registers."""

FLOAT: Final = ir.FloatType()
INT64: Final = ir.IntType(64)
VECTOR: Final = ir.VectorType(FLOAT, LANES)
_INT32: Final = ir.IntType(32)
_INT_VECTOR: Final = ir.VectorType(_INT32, LANES)

Builder = Any
"""llvmlite.ir.IRBuilder; llvmlite is not typed."""
Value = Any

_LOG2_E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.693359375
_LN2_LOW: Final = -2.12194440e-4
_EXP_COEFFICIENTS: Final = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Minimax polynomial of exp on [-ln2/2, ln2/2] (Cephes expf), relative error 2e-7."""
_EXP_MIN: Final = -87.0
"""Below this exp is taken as exactly 0 (its true value is under 2e-38)."""


def constant(value: float) -> Value:
    """The same number in every lane."""
    return ir.Constant(VECTOR, [value] * LANES)


def times(builder: Builder, index: Value, factor: int) -> Value:
    """index * factor, for offsets."""
    return builder.mul(index, ir.Constant(INT64, factor))


def load(builder: Builder, address: Value, offset: Value) -> Value:
    """LANES floats."""
    return builder.load(_pointer(builder, address, offset, VECTOR), align=4)


def store(builder: Builder, value: Value, address: Value, offset: Value) -> None:
    """Write LANES floats."""
    builder.store(value, _pointer(builder, address, offset, VECTOR), align=4)


def load_splat(builder: Builder, address: Value, offset: Value) -> Value:
    """One float in every lane."""
    return splat(builder, builder.load(_pointer(builder, address, offset, FLOAT), align=4))


def splat(builder: Builder, scalar: Value) -> Value:
    """A scalar in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INT_VECTOR, [0] * LANES))


def multiply_add(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    """a * b + c, fused where the machine can."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def larger(builder: Builder, a: Value, b: Value) -> Value:
    """The larger of each lane; b where a is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def reduce_lanes(
    builder: Builder, vector: Value, combine: Callable[[Builder, Value, Value], Value]
) -> Value:
    """Combine all lanes pairwise, always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        order = ir.Constant(_INT_VECTOR, [(lane + width) % LANES for lane in range(LANES)])
        vector = combine(builder, vector, builder.shuffle_vector(vector, vector, order))
    return builder.extract_element(vector, ir.Constant(_INT32, 0))


def exp_of_negative(builder: Builder, x: Value) -> Value:
    """exp(x) for x <= 0: 2^n * p(x - n ln2), n the nearest integer to x / ln2. NaN stays NaN."""
    underflow = builder.fcmp_ordered("<", x, constant(_EXP_MIN))
    # NaN takes part in `rest` only: converting it to an integer would be undefined.
    in_range = builder.fcmp_ordered(">=", x, constant(_EXP_MIN))
    bounded = builder.select(in_range, x, constant(_EXP_MIN))
    # Rounding (x / ln2 - 0.5) towards zero gives the nearest integer, x being at most 0.
    exponent = builder.fptosi(
        multiply_add(builder, bounded, constant(_LOG2_E), constant(-0.5)), _INT_VECTOR
    )
    whole = builder.sitofp(exponent, VECTOR)
    rest = multiply_add(builder, whole, constant(-_LN2_HIGH), x)
    rest = multiply_add(builder, whole, constant(-_LN2_LOW), rest)
    polynomial = constant(_EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        polynomial = multiply_add(builder, polynomial, rest, constant(coefficient))
    square = builder.fmul(rest, rest)
    value = builder.fadd(multiply_add(builder, polynomial, square, rest), constant(1.0))
    bias = ir.Constant(_INT_VECTOR, [127] * LANES)
    shift = ir.Constant(_INT_VECTOR, [23] * LANES)
    power = builder.bitcast(builder.shl(builder.add(exponent, bias), shift), VECTOR)
    return builder.select(underflow, constant(0.0), builder.fmul(value, power))


def _pointer(builder: Builder, address: Value, offset: Value, kind: Any) -> Value:
    byte_offset = builder.shl(offset, ir.Constant(INT64, 2))
    return builder.inttoptr(builder.add(address, byte_offset), kind.as_pointer())
