"""How commands print: to stdout, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.table import Table

__all__ = ["bar_line", "bare_table", "plain", "print_json", "sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"
"""Eighths of a cell."""


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(value, allow_nan=False), flush=True)  # noqa: T201 - the output of the command


def plain(message: Message) -> dict[str, Any]:
    """Every field by its name, for `print_json`; numbers of 64 bits are texts."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def bare_table(*columns: str) -> Table:
    """A table without lines; what does not fit is folded, never cut."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def sparkline(values: Iterable[float], width: int) -> str:
    """The newest `width` values, a cell each, from 0 to the largest of them."""
    shown = [max(0.0, value) for value in values][-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _LEVELS[0] * len(shown)
    return "".join(
        _LEVELS[min(int(value / top * len(_LEVELS)), len(_LEVELS) - 1)] for value in shown
    )


def bar_line(share: float, width: int) -> str:
    """A bar that fills `share` of `width` cells."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)
