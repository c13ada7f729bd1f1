"""Atomic loads, stores and fences on int64 words of shared memory, for nopython code.

A plain load in a polling loop is hoisted by LLVM and then never sees the other process; a plain
store may be merged or moved. Everything that touches a shared region goes through this module.
The memory orders are those of C11: "relaxed" is LLVM's monotonic. Words are int64 so that index
arithmetic in numba never mixes signs (uint64 + int64 would become a float).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic as numba_intrinsic

__all__ = [
    "bits_to_float32",
    "bits_to_float64",
    "fence_acquire",
    "fence_release",
    "float32_to_bits",
    "float64_to_bits",
    "load_acquire",
    "load_relaxed",
    "store_relaxed",
    "store_release",
]

_WORD_BYTES = 8


def intrinsic(implementation: Callable[..., Any]) -> Any:
    """numba's decorator without its Python signature, which has one argument too many."""
    return numba_intrinsic(implementation)


def _word_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _load(ordering: str) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(pointer, ordering, _WORD_BYTES)

    return codegen


def _store(ordering: str) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, ordering, _WORD_BYTES)
        return context.get_dummy_value()

    return codegen


def _fence(ordering: str) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence(ordering)
        return context.get_dummy_value()

    return codegen


def _bitcast(llvm_type: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], llvm_type)

    return codegen


@intrinsic
def load_relaxed(_typing: Any, words: Any, _index: Any) -> Any:
    """`words[index]`, atomic, no ordering. words: int64 [n], C contiguous; index is unchecked."""
    return types.int64(words, types.intp), _load("monotonic")


@intrinsic
def load_acquire(_typing: Any, words: Any, _index: Any) -> Any:
    """`words[index]`; what follows in program order is not done before it."""
    return types.int64(words, types.intp), _load("acquire")


@intrinsic
def store_relaxed(_typing: Any, words: Any, _index: Any, _value: Any) -> Any:
    """`words[index] = value`, atomic, no ordering."""
    return types.void(words, types.intp, types.int64), _store("monotonic")


@intrinsic
def store_release(_typing: Any, words: Any, _index: Any, _value: Any) -> Any:
    """`words[index] = value`; what precedes it in program order is visible before it."""
    return types.void(words, types.intp, types.int64), _store("release")


@intrinsic
def fence_acquire(_typing: Any) -> Any:
    """Loads before the fence are done before anything after it."""
    return types.void(), _fence("acquire")


@intrinsic
def fence_release(_typing: Any) -> Any:
    """Everything before the fence is done before any store after it."""
    return types.void(), _fence("release")


@intrinsic
def float64_to_bits(_typing: Any, _value: Any) -> Any:
    """The IEEE 754 bits of a float64 as int64."""
    return types.int64(types.float64), _bitcast(ir.IntType(64))


@intrinsic
def bits_to_float64(_typing: Any, _bits: Any) -> Any:
    """Inverse of `float64_to_bits`."""
    return types.float64(types.int64), _bitcast(ir.DoubleType())


@intrinsic
def _float32_bits(_typing: Any, _value: Any) -> Any:
    return types.uint32(types.float32), _bitcast(ir.IntType(32))


@intrinsic
def _bits_float32(_typing: Any, _bits: Any) -> Any:
    return types.float32(types.uint32), _bitcast(ir.FloatType())


@njit(inline="always")
def float32_to_bits(value: Any) -> Any:
    """The IEEE 754 bits of a float32 as int64 in [0, 2^32)."""
    return types.int64(_float32_bits(types.float32(value)))


@njit(inline="always")
def bits_to_float32(bits: Any) -> Any:
    """The float32 whose bits are the low half of the int64 `bits`."""
    return _bits_float32(types.uint32(bits))
