"""What is wrong with a document, in words that name each value."""

from __future__ import annotations

import json

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["problems"]

_MAX_SHOWN = 5
_MAX_VALUE_CHARS = 60


def problems(error: ValidationError) -> list[tuple[tuple[int | str, ...], str, str]]:
    """(place, value, what is accepted) of the first few problems; the value, as ` = JSON`, is
    shortened, and empty where there is none."""
    found = error.errors(include_url=False)[:_MAX_SHOWN]
    return [(each["loc"], _value(each), each["msg"]) for each in found]


def _value(problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return ""
    given = json.dumps(problem["input"], default=repr)
    short = given if len(given) <= _MAX_VALUE_CHARS else f"{given[: _MAX_VALUE_CHARS - 3]}..."
    return f" = {short}"
