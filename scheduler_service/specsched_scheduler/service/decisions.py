"""Decisions on their way onto a stream: only the newest is ever sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from specsched_protocol.inline import pack_decision
from specsched_protocol.v1 import scheduler_pb2 as pb

from .planning import Planning

__all__ = ["DecisionSender"]


class DecisionSender:
    """Announces itself to an outbox once there is a decision; `take` then has the newest one.

    A mailbox of one element: while a stream takes nothing, newer decisions replace older ones,
    which are of no use any more. Idle where decisions travel through shared memory. Lives on the
    event loop that made it.
    """

    def __init__(self, planning: Planning, announce: Callable[[DecisionSender], None]) -> None:
        self._planning = planning
        self._announce = announce
        self._is_announced = False
        self._last_index = 0
        self._decided = planning.transport.regions.decided
        if self._decided is not None:
            asyncio.get_running_loop().add_reader(self._decided.fileno(), self._on_decided)

    def take(self) -> pb.AttachResponse | None:
        """The newest decision, unless it was taken before."""
        self._is_announced = False
        newest = self._planning.newest()
        if newest is None or newest.index == self._last_index:
            return None
        self._last_index = newest.index
        return pb.AttachResponse(decision=pack_decision(newest.decision))

    def close(self) -> None:
        """Announce nothing any more."""
        if self._decided is not None:
            asyncio.get_running_loop().remove_reader(self._decided.fileno())

    def _on_decided(self) -> None:
        if self._decided is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._decided.fileno())
        if not self._is_announced:
            self._is_announced = True
            self._announce(self)
