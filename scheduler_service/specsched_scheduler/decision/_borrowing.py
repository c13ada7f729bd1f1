"""Compiled: arrays without their reference counts, for code that only uses them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["borrowed"]


_OWNERS = ("meminfo", "parent")


def _borrow(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        model = context.data_model_manager[kind]
        for index in map(model.get_field_position, _OWNERS):
            nobody = ir.Constant(value.type.elements[index], None)
            value = builder.insert_value(value, nobody, index)
    elif isinstance(kind, types.BaseTuple):
        members: Any = kind
        for index, member in enumerate(members):
            item = _borrow(context, builder, member, builder.extract_value(value, index))
            value = builder.insert_value(value, item, index)
    return value


def _borrowed(_typing: Any, value: Any) -> Any:
    """`value`, a tuple of arrays and numbers or one of these, without what owns the arrays.

    numba counts references with atomic instructions wherever a tuple of arrays is handed on or
    looked into: a dozen arrays make that a tenth of a microsecond per call. Nothing is counted for
    arrays that nobody owns. They are only good as long as the caller keeps `value`, so they are for
    arguments, and must not be returned.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _borrow(context, builder, signature.args[0], args[0])

    return value(value), codegen


borrowed: Any = intrinsic(_borrowed)
