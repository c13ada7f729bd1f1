"""What is wrong in a file, in one line."""

from __future__ import annotations

from pydantic import ValidationError

__all__ = ["first_error"]

_MAX_SHOWN = 80


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong: its place, where it has one, what is wanted, what is there."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    said = f"{place}: {first['msg']}" if place else first["msg"]
    if first["type"] in {"missing", "json_invalid"}:
        return said
    shown = repr(first["input"])
    return f"{said}; found {shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + '...'}"
