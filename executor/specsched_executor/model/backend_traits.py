"""What the steps of a backend may be, and whether that is enough to verify what is scheduled."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BackendTraits", "CaptureLevel", "refusals"]


class CaptureLevel(enum.IntEnum):
    """Which steps of a backend a graph can hold."""

    NEVER = 0
    UNIFORM_BATCH = 1
    """Those in which every request sends the same number of rows."""
    ALWAYS = 2
    """Any: one graph serves any mix of query lengths."""


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """name: of the backend, and the part of a step that it runs. lengths_may_differ: whether the
    query lengths that the host assumes may be others than those on the device. is_draft: whether it
    runs layers of a drafter.
    """

    name: str
    capture: CaptureLevel
    lengths_may_differ: bool
    is_draft: bool = False


def refusals(backends: Sequence[BackendTraits]) -> list[str]:
    """Why a scheduler cannot decide what these verify, one reason each; none: it can.

    Layers of a drafter do not count: all requests draft the same number of tokens.
    """
    reasons = []
    for backend in backends:
        if backend.is_draft:
            continue
        if backend.capture < CaptureLevel.ALWAYS:
            reasons.append(
                f"{backend.name} is captured {backend.capture.name}, not ALWAYS: no graph of it"
                " holds requests of different lengths"
            )
        if not backend.lengths_may_differ:
            reasons.append(
                f"{backend.name} needs the host to know query lengths that only the device knows"
            )
    return reasons
