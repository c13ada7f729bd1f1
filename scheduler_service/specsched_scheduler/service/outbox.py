"""What an Attach stream has to send: bounded, however slowly the executor takes it."""

from __future__ import annotations

import asyncio
from collections import deque

from specsched_protocol.v1 import scheduler_pb2 as pb

from .decisions import DecisionSender

__all__ = ["Outbox"]

_MAX_QUEUED = 64

Item = pb.AttachResponse | DecisionSender


class Outbox:
    """Lives on one event loop. Of news (`put_latest`) only the newest of a kind waits."""

    def __init__(self) -> None:
        self._queue: deque[Item] = deque()
        self._latest: dict[str, pb.AttachResponse] = {}
        self._changed = asyncio.Event()
        self._is_ended = False

    def put(self, item: Item) -> None:
        """Send `item` after those put before; the stream ends where the peer lets them pile up."""
        if len(self._queue) < _MAX_QUEUED:
            self._queue.append(item)
        else:
            self._is_ended = True
        self._changed.set()

    def put_latest(self, message: pb.AttachResponse) -> None:
        """Send `message` in place of one of its kind that was not sent yet."""
        self._latest[str(message.WhichOneof("message"))] = message
        self._changed.set()

    def end(self) -> None:
        """End the stream once what was put before is sent."""
        self._is_ended = True
        self._changed.set()

    async def next(self) -> Item | None:
        """What is to be sent next; None: the stream is to end."""
        while True:
            if self._queue:
                return self._queue.popleft()
            if self._latest:
                return self._latest.pop(next(iter(self._latest)))
            if self._is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
