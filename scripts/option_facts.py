"""What a settings class says of its options, for documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from specsched_protocol.settings import Settings, accepted_bounds

__all__ = ["OptionFacts", "option_facts"]

_UNITS: Final = {
    "ms": "ms",
    "us": "us",
    "s": "s",
    "bytes": "bytes",
    "tokens": "tokens",
    "blocks": "blocks",
    "threads": "threads",
}
"""By the last word of an option's name. Others say theirs: json_schema_extra={"unit": ...}."""


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """One option. unit: empty for what is no number; accepted: empty where its kind says it all."""

    flag: str
    variable: str
    default: str
    unit: str
    accepted: str
    description: str


def option_facts(settings: type[Settings]) -> Iterator[tuple[type[Settings], OptionFacts]]:
    """Every option, with the class that brought it. Raises ValueError for a number without unit."""
    for name, field in settings.model_fields.items():
        owner = next(
            base
            for base in reversed(settings.__mro__)
            if issubclass(base, Settings) and name in base.model_fields
        )
        yield owner, _facts(settings, name, field)


def _facts(settings: type[Settings], name: str, field: FieldInfo) -> OptionFacts:
    kinds = _kinds(field.annotation)
    is_flag = bool in kinds
    word = name.replace("_", "-")
    return OptionFacts(
        flag=f"--[no-]{word}" if is_flag else f"--{word}",
        variable=settings.env_name(name),
        default=_default(field),
        unit=_unit(name, field, kinds),
        accepted=_accepted(field, kinds),
        description=(field.description or "").strip(),
    )


def _kinds(annotation: Any) -> list[Any]:
    """The types and literals that an annotation admits, None left out."""
    if get_origin(annotation) in {Union, UnionType}:
        return [k for each in get_args(annotation) if each is not NoneType for k in _kinds(each)]
    if get_origin(annotation) is Literal:
        return [f"`{value}`" for value in get_args(annotation)]
    if get_origin(annotation) is list:
        return _kinds(get_args(annotation)[0])
    return [annotation]


def _default(field: FieldInfo) -> str:
    told = _extra(field).get("default")
    if told is not None:
        return str(told)
    value = field.get_default(call_default_factory=True)
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _unit(name: str, field: FieldInfo, kinds: list[Any]) -> str:
    told = _extra(field).get("unit")
    if told is not None:
        return str(told)
    if not {int, float} & {kind for kind in kinds if isinstance(kind, type)}:
        return ""
    unit = _UNITS.get(name.rpartition("_")[2])
    if unit is None:
        raise ValueError(f"option {name} is a number without a unit: json_schema_extra={{'unit'}}")
    return unit


def _accepted(field: FieldInfo, kinds: list[Any]) -> str:
    literals = [kind for kind in kinds if isinstance(kind, str)]
    if literals:
        return ", ".join(literals)
    bounds = re.sub(r"(?<=\d)\.0\b", "", accepted_bounds(field))
    return re.sub(
        r">= (\S+) and <= (\S+)", r"\1 to \2", re.sub(r"^>= (\S+)$", r"\1 or more", bounds)
    )


def _extra(field: FieldInfo) -> Mapping[str, Any]:
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}
