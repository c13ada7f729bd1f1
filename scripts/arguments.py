"""Command lines that end in the options of another command."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["split_arguments"]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the first "--" and what after it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place + 1 :])
