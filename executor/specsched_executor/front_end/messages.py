"""What the engine's process and the front end say to each other; pickled, in order.

What is said of each request is a tuple: that is pickled in half the time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from specsched_executor.core import GenerationRequest, TokenDelta
from specsched_executor.progress import Progress

# ===================== Front end to engine =====================


class Submit(NamedTuple):
    """A request; `key` names it from here on. Answered by deltas, the last with a reason."""

    key: int
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request early that was submitted under this key."""

    key: int
    request_id: str


@dataclass(frozen=True, slots=True)
class AbortElsewhere:
    """End a request early, whichever front end it came through."""

    request_id: str


class Topic(enum.Enum):
    """What the front end may ask about."""

    STATS = enum.auto()
    SCHEDULERS = enum.auto()


@dataclass(frozen=True, slots=True)
class Ask:
    """Answered under the same number."""

    number: int
    topic: Topic


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports are bound."""

    port: int
    listen_port: int | None


@dataclass(frozen=True, slots=True)
class CannotListen:
    """They are not, and the front end ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Metered:
    """The state of the front end's RequestMeter."""

    state: dict[str, Any]


# ===================== Engine to front end =====================


class Deltas(NamedTuple):
    """New tokens: of outputs that go on as arrays, whatever else as (key, delta)."""

    progress: Progress | None
    others: list[tuple[int, TokenDelta]]

    def packed(self) -> tuple[Any, ...]:
        """What is sent, one for each step: looking a class up takes longer than all the rest."""
        others = [(key, *_delta_values(delta)) for key, delta in self.others]
        return (None if self.progress is None else self.progress.packed(), others)

    @classmethod
    def unpacked(cls, packed: tuple[Any, ...]) -> Deltas:
        """The reverse."""
        progress, others = packed
        return cls(
            None if progress is None else Progress.unpacked(*progress),
            [(key, TokenDelta(*values)) for key, *values in others],
        )


_delta_values = attrgetter(*TokenDelta.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Answer:
    """To a question; `value` is what the engine's method returned."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class NotAnswered:
    """To a question, instead of an answer."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Take requests from now on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Let requests end for so long, then abort what is left, and end."""

    grace_s: float
