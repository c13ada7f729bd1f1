"""What one scheduler learned, carried to another before that one is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from specsched_protocol.v1 import scheduler_pb2 as pb

from .session import AttachSession

__all__ = ["Handovers"]

_log = structlog.get_logger(__name__)

_TIMEOUT_S = 1.0
"""Both ends may be in the middle of a fit; after this the switch is made without."""


@dataclass(slots=True)
class _Handover:
    source: AttachSession
    target: AttachSession
    go_on: Callable[[], None]
    deadline_s: float


class Handovers:
    """Those under way. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._under_way: list[_Handover] = []

    @property
    def num_under_way(self) -> int:
        """How many wait for an answer."""
        return len(self._under_way)

    def begin(
        self, source: AttachSession | None, target: AttachSession, go_on: Callable[[], None]
    ) -> None:
        """Carry state from `source` to `target`, then `go_on`; at once where that cannot be."""
        if source is None or source is target or not (_has(source) and _has(target)):
            go_on()
            return
        deadline_s = time.monotonic() + _TIMEOUT_S
        self._under_way.append(_Handover(source, target, go_on, deadline_s))
        source.ask_state()

    def on_state(self, source: AttachSession, document: str) -> None:
        """The source told."""
        for each in self._under_way:
            if each.source is source:
                each.target.send_state(document)

    def on_taken(self, target: AttachSession, refusal: str) -> None:
        """The target took it over, or not."""
        if refusal:
            _log.warning("learned state refused", scheduler=target.scheduler_name, reason=refusal)
        self._end([each for each in self._under_way if each.target is target])

    def drop(self, session: AttachSession) -> None:
        """A scheduler is gone: go on without."""
        gone = (each for each in self._under_way if session in {each.source, each.target})
        self._end(list(gone))

    def advance(self) -> None:
        """Go on where an answer takes too long."""
        now = time.monotonic()
        self._end([each for each in self._under_way if now > each.deadline_s])

    def _end(self, ended: list[_Handover]) -> None:
        for each in ended:
            self._under_way.remove(each)
            each.go_on()


def _has(session: AttachSession) -> bool:
    return session.has(pb.FEATURE_LEARNED_STATE)
